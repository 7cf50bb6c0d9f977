"""The flow of a federation: each round, train clients on workers, aggregate, evaluate and log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from shoal.tasks.prefect.environment import lost, quiet

quiet()

import httpx  # noqa: E402 (comes with Prefect)
from prefect import flow, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402
from prefect.utilities.urls import url_for  # noqa: E402

from shoal.core.errors import ShoalError  # noqa: E402
from shoal.engine.rounds.loop import Observer  # noqa: E402
from shoal.engine.settings import places  # noqa: E402
from shoal.engine.store.lineage import FlowRun  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.flows.artifacts import ProgressArtifact  # noqa: E402
from shoal.flows.finish import evaluate, report  # noqa: E402
from shoal.flows.lost_flow_runs import end_lost_flow_runs  # noqa: E402
from shoal.flows.names import flow_run_name, run_title  # noqa: E402
from shoal.flows.task_runs import drive_as_task_runs  # noqa: E402
from shoal.lifecycle.driving import ROUNDS, drive, workers_kept  # noqa: E402
from shoal.review.results.result import RunResult, run_result  # noqa: E402


class WithoutLostConnections(logging.Filter):
    """Of a server that does not answer Prefect says so in one line, instead of a hundred of traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without its traceback where a connection was lost."""
        if record.exc_info and isinstance(record.exc_info[1], httpx.TransportError):
            record.exc_info = record.exc_text = None
        return True


logging.getLogger("prefect.flow_runs").addFilter(WithoutLostConnections())

THREADS = 1024
"""Task runs at once, at most; they wait for workers, of which a cluster may have hundreds."""


@flow(name="federate", flow_run_name=flow_run_name, task_runner=ThreadPoolTaskRunner(max_workers=THREADS))  # type: ignore[arg-type]
def federate(run: str, observers: Sequence[Any] = ()) -> RunResult:
    """All rounds of a run that are still to do: train clients on workers, aggregate, evaluate, log.

    The rounds are the engine's (`shoal.engine.rounds.loop`). Here each of its units of work becomes a task run:
    `shoal.tasks.train`, `shoal.tasks.aggregate`, `shoal.tasks.evaluate`.

    Args:
        run: the run's folder, its name, or `latest`.
        observers: told of every event.
    """
    folder = RunFolder.find(run, places.runs())
    with folder.locked(), ProgressArtifact(folder) as progress:
        end_lost_flow_runs(folder)
        flow_run = str(runtime.flow_run.id)
        folder.set_lineage(prefect=FlowRun(flow_run, url_for("flow-run", obj_id=flow_run)))
        return drive_as_task_runs(folder, (ROUNDS,), [progress, *observers])


def run_with_prefect(folder: RunFolder, observers: Sequence[Observer] = ()) -> RunResult:
    """Drive a run as Prefect flows, one a stage; if Prefect itself fails, what was computed counts.

    Raises:
        ShoalError: the run stopped and can be resumed.
    """
    settings, run, told = folder.settings(), str(folder.path), list(observers)
    with workers_kept(folder):
        try:
            named = federate.with_options(flow_run_name=run_title(settings))
            with tags(settings.method.name, settings.data.name):
                named(run, told)
                evaluate(run, told)
                report(run, told)
        except (ShoalError, KeyboardInterrupt):
            raise
        except Exception:
            lost.set()
            return drive(folder, observers=observers)
    return run_result(folder)
