"""The way from a run's folder to its end, with Prefect or without it; Prefect is only imported where it is used."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import RunResult


def execute(run: RunFolder, observers: Sequence[Observer] = ()) -> RunResult:
    """Do all that is still to do of a run: as a Prefect flow where `tracking.prefect` asks for one, else without it.

    Args:
        run: the run's folder.
        observers: called with every event.

    Raises:
        ShoalError: the run stopped and can be resumed. KeyboardInterrupt likewise.
    """
    from shoal.lifecycle.driving import drive

    choice = run.settings().tracking.prefect
    if choice != "off":
        from shoal.tasks.prefect.environment import guard_temporary_server, server_answers

        if choice == "on" or server_answers():
            guard_temporary_server()
            from shoal.flows.federate import run_with_prefect  # here: Prefect takes seconds to import

            return run_with_prefect(run, observers=observers)
    return drive(run, observers=observers)
