"""The flow of a run that has its folder: train clients in rounds, aggregate, evaluate, cluster, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import httpx
from prefect import flow, tags

from shoal.core.errors import ShoalError
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.review.results.result import RunResult
from shoal.tasks.prefect.artifacts import result_artifacts
from shoal.tasks.prefect.environment import server_lost
from shoal.tasks.prefect.flow_run_names import run_title
from shoal.tasks.prefect.stages import UNIT_RUNNER, drive_as_task_runs


class OneLineForLostConnections(logging.Filter):
    """A filter that logs a lost connection to Prefect's server in one line instead of a hundred of traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without its traceback where a connection was lost."""
        if record.exc_info and isinstance(record.exc_info[1], httpx.TransportError):
            record.exc_info = None
            record.exc_text = None
        return True


logging.getLogger("prefect.flow_runs").addFilter(OneLineForLostConnections())


@flow(name="federate", task_runner=UNIT_RUNNER)  # type: ignore[arg-type]
def federate(run: str, observers: Sequence[Any] = ()) -> RunResult:
    """Do what is still to do of a run: train clients in rounds, aggregate, evaluate, cluster every sample, report.

    The rounds are the engine's (`shoal.engine.rounds.loop`). Here each of its units of work becomes a task run, such as
    `shoal.tasks.train`, `shoal.tasks.aggregate` and `shoal.tasks.evaluate`.

    Args:
        run: the run's folder, its name, or `latest`.
        observers: called with every event.
    """
    folder = RunFolder.find(run)
    result = drive_as_task_runs(folder, observers=observers)
    result_artifacts(folder)
    return result


def run_with_prefect(folder: RunFolder, observers: Sequence[Observer] = ()) -> RunResult:
    """Drive a run as a Prefect flow; if Prefect itself fails, what was computed counts.

    Raises:
        ShoalError: the run stopped and can be resumed.
    """
    settings = folder.settings()
    named = federate.with_options(flow_run_name=run_title(settings))
    try:
        with tags(settings.method.name, settings.data.name):
            return named(str(folder.path), list(observers))
    except (ShoalError, KeyboardInterrupt):
        raise
    except Exception:
        server_lost.set()
        return drive(folder, observers=observers)
