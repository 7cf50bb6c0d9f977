"""Prefect flows: prepare, federate, evaluate and report, composed in one pipeline."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flows.quiet import lost, quiet

quiet()

from prefect import flow, get_run_logger, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.artifacts import (  # noqa: E402
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import TagsContext  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402

from data.errors import ShoalError  # noqa: E402
from flows import places  # noqa: E402
from flows.launch import drive, find_like, new_run, prepare_data, prepare_partition  # noqa: E402
from flows.prefect_runner import PrefectRunner  # noqa: E402
from tasks.engine import Observer  # noqa: E402
from tasks.evaluate import evaluate_state  # noqa: E402
from tasks.result import run_result  # noqa: E402
from tasks.runfolder import FINISHED, RunFolder  # noqa: E402
from tasks.settings import Settings  # noqa: E402

THREADS = 64
EVERY = 2.0
"""Seconds between updates of the progress artifact, at least."""


def _name() -> str:
    given = runtime.flow_run.parameters
    settings = given.get("settings")
    if settings is None:
        return f"{runtime.flow_run.flow_name} {Path(given.get('run', '')).name}".strip()
    return f"{settings.method.name} on {settings.data.name}, {settings.rounds} rounds"


@flow(name="prepare", flow_run_name=_name)
def prepare(settings: Settings) -> dict[str, str]:
    """Prepare the data set and its partition, where that was not done before."""
    prepared = prepare_data(settings)
    folder, partition = prepare_partition(settings, prepared)
    return {"data": str(prepared.folder), "partition": str(folder), "digest": partition.digest}


@flow(name="federate", flow_run_name=_name, task_runner=ThreadPoolTaskRunner(max_workers=THREADS))  # type: ignore[arg-type]
def federate(run: str, observers: Sequence[Any] = ()) -> dict[str, Any]:
    """All rounds of a run (its folder, name, or `latest`) that are still to do."""
    folder = RunFolder.find(run, places.runs())
    folder.set_lineage(prefect={"flow_run": str(runtime.flow_run.id)})
    log = get_run_logger()

    def warn(message: str) -> None:
        folder.event("prefect_lost", message=message)
        log.warning(message)

    progress = ProgressArtifact(folder)
    # The flow run's tags would be the task runs' too, and each costs a question to Prefect's concurrency service.
    with TagsContext(current_tags=set()), task_runs_unlogged(), progress:
        return drive(
            folder,
            runner_of=lambda slots: PrefectRunner(2 * slots + 2, warn),
            observers=[progress, *observers],
        )


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


@flow(name="evaluate", flow_run_name=_name)
def evaluate(run: str) -> dict[str, float]:
    """Judge the newest server state of a run again, with every metric."""
    return evaluate_state(RunFolder.find(run, places.runs()))


@flow(name="report", flow_run_name=_name)
def report(run: str) -> str:
    """Figures and report.html of a run, and its table as an artifact."""
    from tasks.figures import draw_figures  # here, as in flows.launch: every command would wait for matplotlib
    from tasks.report import write_report

    folder = RunFolder.find(run, places.runs())
    draw_figures(folder)
    path = write_report(folder)
    table_artifact(folder)
    return str(path)


@flow(name="pipeline", flow_run_name=_name)
def pipeline(settings: Settings, resume: bool = True) -> dict[str, Any]:
    """From raw data to a reviewed result.

    Args:
        settings: of the run; the same model as the settings file and `--set`.
        resume: go on with an unfinished run of the same settings, where there is one.
    """
    prepare(settings)
    found = find_like(settings) if resume else None
    if found is not None and found.status()["state"] == FINISHED:
        found = None  # a schedule wants a new run
    folder = found or new_run(settings)
    with tags(settings.method.name, settings.data.name):
        result = federate(str(folder.path))
        evaluate(str(folder.path))
        report(str(folder.path))
    return result


class ProgressArtifact:
    """An observer that shows rounds as a progress artifact; silent where Prefect cannot be reached.

    Prefect is told on a thread of its own, and not of every round where rounds are short.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._id: Any = None
        self._silent = False
        self._rounds = 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artifact")
        self._pending: Future[None] | None = None
        self._told = -EVERY

    def __enter__(self) -> ProgressArtifact:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def __call__(self, event: dict[str, Any]) -> None:
        """Create the artifact when the run starts, move it after each round."""
        if event["event"] in ("started", "resumed"):
            self._rounds = event["rounds"]
        elif event["event"] != "round_finished":
            return
        last = event["round"] == self._rounds
        idle = self._pending is None or self._pending.done()
        if last or (idle and time.monotonic() - self._told >= EVERY):
            self._told = time.monotonic()
            share = 100.0 * event["round"] / self._rounds
            self._pending = self._thread.submit(contextvars.copy_context().run, self._tell, share)

    def _tell(self, share: float) -> None:
        if self._silent:
            return
        try:
            if self._id is None:
                about = f"rounds of {self._folder.name}"
                self._id = create_progress_artifact(progress=share, description=about)
            else:
                update_progress_artifact(self._id, progress=share)
        except Exception:
            # Prefect is out of reach: each further try would make the run wait.
            self._silent = True


def table_artifact(folder: RunFolder) -> None:
    """The result of a run as a table artifact, with a link to its MLflow run."""
    result = run_result(folder)
    rows = [{"what": name, "value": f"{value:.4f}"} for name, value in result["metrics"].items()]
    rows += [{"what": f"bytes {way}", "value": f"{count:,}"} for way, count in result["bytes"].items()]
    rows += [{"what": "MLflow run", "value": str(result["mlflow_run"])}, {"what": "folder", "value": result["run"]}]
    with contextlib.suppress(Exception):
        create_table_artifact(table=rows, description=f"{folder.name}; MLflow run {result['mlflow_run']}")


def run_with_prefect(folder: RunFolder, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Drive a run as a Prefect flow; if Prefect itself fails, what was computed counts.

    Raises:
        ShoalError: the run stopped and can be resumed.
    """
    try:
        settings = folder.settings()
        named = federate.with_options(
            flow_run_name=f"{settings.method.name} on {settings.data.name}, {settings.rounds} rounds"
        )
        with tags(settings.method.name, settings.data.name):
            return named(str(folder.path), list(observers))
    except (ShoalError, KeyboardInterrupt):
        raise
    except Exception:
        lost.set()
        if folder.status()["state"] != FINISHED:
            return drive(folder, observers=observers)
        return run_result(folder)
