"""The flow of a federation: each round, train clients on workers, aggregate, evaluate and log; then report."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.tasks.prefect.environment import lost, quiet

quiet()

import httpx  # noqa: E402 (comes with Prefect)
from prefect import flow, get_run_logger, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.context import TagsContext  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402
from prefect.utilities.urls import url_for  # noqa: E402

from shoal.core.errors import ShoalError  # noqa: E402
from shoal.engine.rounds.loop import Observer  # noqa: E402
from shoal.engine.settings import places  # noqa: E402
from shoal.engine.store.run_events import is_warning, words_of  # noqa: E402
from shoal.engine.store.run_folder import FINISHED, RunFolder  # noqa: E402
from shoal.flows.artifacts import ProgressArtifact  # noqa: E402
from shoal.flows.names import flow_run_name, run_title  # noqa: E402
from shoal.flows.parts import LOST, log_warnings  # noqa: E402
from shoal.lifecycle.driving import drive  # noqa: E402
from shoal.review.results.result import RunResult, run_result  # noqa: E402
from shoal.tasks.prefect.runner import PrefectRunner  # noqa: E402


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
    """All rounds of a run that are still to do: train clients on workers, aggregate, evaluate, log; then report.

    The rounds are the engine's (`shoal.engine.rounds.loop`). Here each of its units of work becomes a task run:
    `shoal.tasks.train`, `shoal.tasks.aggregate`, `shoal.tasks.evaluate`; and at the end `shoal.tasks.assign`,
    `shoal.tasks.log` and `shoal.tasks.promote`.

    Args:
        run: the run's folder, its name, or `latest`.
        observers: told of every event.
    """
    folder = RunFolder.find(run, places.runs())
    log = get_run_logger()

    warned: list[dict[str, Any]] = []

    def warn(event: dict[str, Any]) -> None:
        if is_warning(event):
            warned.append(event)
            log.warning(words_of(event))

    def tell_lost(said: str) -> None:
        folder.event(LOST, message=said)

    with folder.locked(), untagged(), task_runs_unlogged(), ProgressArtifact(folder) as progress:
        flow_run = str(runtime.flow_run.id)
        folder.set_lineage(prefect={"flow_run": flow_run, "page": url_for("flow-run", obj_id=flow_run)})
        try:
            return drive(
                folder,
                runner_of=lambda slots: PrefectRunner(2 * slots + 2, tell_lost),
                observers=[progress, warn, *observers],
            )
        finally:
            log_warnings(log, warned)


def run_with_prefect(folder: RunFolder, observers: Sequence[Observer] = ()) -> RunResult:
    """Drive a run as a Prefect flow; if Prefect itself fails, what was computed counts.

    Raises:
        ShoalError: the run stopped and can be resumed.
    """
    try:
        settings = folder.settings()
        named = federate.with_options(flow_run_name=run_title(settings))
        with tags(settings.method.name, settings.data.name):
            return named(str(folder.path), list(observers))
    except (ShoalError, KeyboardInterrupt):
        raise
    except Exception:
        lost.set()
        if folder.status()["state"] != FINISHED:
            return drive(folder, observers=observers)
        return run_result(folder)


@contextlib.contextmanager
def untagged() -> Iterator[None]:
    """Without the flow run's tags on task runs, each of which costs a question to Prefect's concurrency service."""
    with TagsContext(current_tags=set()):
        yield


@contextlib.contextmanager
def task_runs_unlogged() -> Iterator[None]:
    """Without the line that Prefect logs at the end of every task run: the task run itself says as much."""
    logger = logging.getLogger("prefect.task_runs")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
