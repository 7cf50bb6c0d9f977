"""The way from a run's folder to its end, with Prefect or without it; Prefect is only imported where it is used."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence

from rich.console import Console

from shoal.engine.store.run_events import Event, Observer, is_warning
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import RunResult

CHOICES = ("method_chosen", "clusters_chosen", "scale_of_columns")
"""Events that say what the settings of a run left open, and how it was chosen."""


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


def complete(run: RunFolder, console: Console | None, observers: Sequence[Observer] = ()) -> RunResult:
    """Do what is still to do of a run; with a console show what was chosen for it, bars, and warnings."""
    from shoal.lifecycle.progress import progress

    unseen: list[Event] = []
    with contextlib.ExitStack() as shown:
        watching: Observer = unseen.append
        if console is not None:
            for event in run.events():
                if event.kind in CHOICES:
                    console.print(event.message, highlight=False, markup=False, soft_wrap=True)
            watching = shown.enter_context(progress(console))
        try:
            return execute(run, [watching, *observers])
        except KeyboardInterrupt:
            print(f"interrupted: `shoal run --resume {run.name}` continues the run", file=sys.stderr)
            raise
        finally:
            for text in dict.fromkeys(event.message or event.kind for event in unseen if is_warning(event)):
                warnings.warn(text, RuntimeWarning, stacklevel=4)
