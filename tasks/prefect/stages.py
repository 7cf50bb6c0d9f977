"""Stages of a run inside a flow run: each unit of work is a task run, and the flow run shows how the run fares."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from prefect import get_client, get_run_logger, pause_flow_run, resume_flow_run, runtime
from prefect.context import TagsContext
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.urls import url_for

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import Settings
from shoal.engine.sites.server import sites_away
from shoal.engine.sites.study import open_study
from shoal.engine.store.run_events import Event, Observer, is_warning
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FlowRun
from shoal.lifecycle.claim import is_done
from shoal.lifecycle.driving import STAGES, drive
from shoal.review.results.result import RunResult
from shoal.tasks.prefect.runner import PrefectRunner

PREFECT_LOST = "prefect_lost"
"""Event of a run: from here on its work is done without Prefect."""
MAX_TASK_RUNS = 1024
"""Task runs at once; most of them wait for workers, of which a cluster may have hundreds."""
UNIT_RUNNER: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=MAX_TASK_RUNS)
"""The task runner of every flow that does stages of a run."""
SITE_AWAY = "site_away"
"""Event of a run: a site is not there, and is waited for."""
POLL_SECONDS = 5
MOST_SECONDS = 7 * 24 * 3600
"""So long a flow run is paused; after that it fails, and its run can be resumed."""


def drive_as_task_runs(run: RunFolder, stages: Sequence[str] = STAGES, observers: Sequence[Observer] = ()) -> RunResult:
    """Do what is still to do of some stages of a run (`shoal.lifecycle.driving`) within this flow run.

    Where the run stops and a site is away, the flow run is paused, and goes on with the site; likewise where a site was
    away, and is back by then.

    Args:
        run: the run's folder.
        stages: which of `STAGES` to do.
        observers: called with every event.

    Raises:
        RunError: another process works on the run.
        ShoalError: the run stopped and can be resumed. KeyboardInterrupt likewise.
    """
    log = get_run_logger()

    def log_warning(event: Event) -> None:
        if is_warning(event):
            log.warning(event.message or event.kind)

    def record_loss(message: str) -> None:
        run.event(PREFECT_LOST, message=message)

    with run.locked(), without_tags():
        if not is_done(run):
            record_flow_run(run)
        before = times_away(run)
        try:
            return drive(
                run,
                runner_of=lambda threads: PrefectRunner(2 * threads, record_loss),
                observers=[log_warning, *observers],
                stages=stages,
            )
        except ShoalError:
            if not wait_for_sites(run.settings()) and times_away(run) == before:
                raise
    return drive_as_task_runs(run, stages, observers)


def times_away(run: RunFolder) -> int:
    """Return how often a run has waited for a site."""
    return sum(event.kind == SITE_AWAY for event in run.events())


def record_flow_run(run: RunFolder) -> None:
    """Record this flow run in the lineage of a run that it trains."""
    flow_run = str(runtime.flow_run.id)
    run.set_tracking(prefect=FlowRun(flow_run, url_for("flow-run", obj_id=flow_run)))


def tag_flow_run(settings: Settings) -> None:
    """Tag this flow run with the method and the data set, beside the tags of its deployment."""
    tags = [*runtime.flow_run.tags, settings.method.name, settings.data.name]
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # the title names both, too
        client.update_flow_run(runtime.flow_run.id, tags=tags)


@contextlib.contextmanager
def without_tags() -> Iterator[None]:
    """Keep the flow run's tags off its task runs: each tag costs a question to Prefect's concurrency service."""
    with TagsContext(current_tags=set()):
        yield


def wait_for_sites(settings: Settings) -> bool:
    """Pause this flow run while a site of its study is away; return whether one was.

    Raises:
        FlowPauseTimeout: it was for a week.
    """
    if settings.workers.runner != "sites":
        return False
    study = open_study()
    away = set(sites_away(study).values())
    if not away:
        return False
    get_run_logger().warning(f"paused, and goes on by itself: {'; '.join(sorted(away))}")
    flow_run = runtime.flow_run.id
    ended = threading.Event()

    def resume() -> None:
        while not ended.wait(POLL_SECONDS):
            if not sites_away(study):
                with contextlib.suppress(Exception):  # Prefect is out of reach, or it is not paused yet
                    resume_flow_run(flow_run)

    threading.Thread(target=resume, daemon=True).start()
    try:
        pause_flow_run(timeout=MOST_SECONDS, poll_interval=POLL_SECONDS)
    finally:
        ended.set()
    return True
