"""Stages of a run in a flow: every unit of work is a task run, and warnings are logged as they come and once more."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from prefect import get_run_logger
from prefect.context import TagsContext

from shoal.engine.rounds.loop import Observer
from shoal.engine.store.run_events import Event, is_warning, words_of
from shoal.engine.store.run_folder import RunFolder
from shoal.flows.parts import LOST, log_warnings
from shoal.lifecycle.driving import drive
from shoal.review.results.result import RunResult
from shoal.tasks.prefect.runner import PrefectRunner


def drive_as_task_runs(run: RunFolder, stages: Sequence[str], observers: Sequence[Observer] = ()) -> RunResult:
    """Do what is still to do of some stages of a run (`shoal.lifecycle.driving`), within a flow run.

    Args:
        run: the run's folder.
        stages: which of `STAGES`.
        observers: called with every event.
    """
    log = get_run_logger()
    warned: list[Event] = []

    def warn(event: Event) -> None:
        if is_warning(event):
            warned.append(event)
            log.warning(words_of(event))

    def tell_lost(said: str) -> None:
        run.event(LOST, message=said)

    def runner_of(requests: int) -> PrefectRunner:
        return PrefectRunner(2 * requests + 2, tell_lost)

    with untagged(), task_runs_unlogged():
        try:
            return drive(run, runner_of=runner_of, observers=[warn, *observers], stages=stages)
        finally:
            log_warnings(log, warned)


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
