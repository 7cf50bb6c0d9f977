"""Prefect flows: prepare, federate, evaluate and report, composed in one pipeline."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.prefect_environment import lost, quiet

quiet()

from prefect import flow, get_run_logger, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.context import TagsContext  # noqa: E402
from prefect.states import Crashed  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402

from core.errors import ShoalError  # noqa: E402
from engine import places  # noqa: E402
from engine.evaluate import evaluate_state  # noqa: E402
from engine.rounds import Observer  # noqa: E402
from engine.run_folder import FINISHED, RunFolder  # noqa: E402
from engine.settings import Settings  # noqa: E402
from engine.worker_processes import warm  # noqa: E402
from flows.artifacts import ProgressArtifact, result_artifacts  # noqa: E402
from flows.claim import claimed_run  # noqa: E402
from review.result import run_result  # noqa: E402
from tasks.launch import drive, prepare_data, prepare_partition  # noqa: E402
from tasks.prefect_runner import PrefectRunner  # noqa: E402

THREADS = 64


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
    from review.figures import draw_figures  # here, as in tasks.launch: every command would wait for matplotlib
    from review.report import write_report

    folder = RunFolder.find(run, places.runs())
    draw_figures(folder)
    path = write_report(folder)
    result_artifacts(folder)
    return str(path)


@flow(name="pipeline", flow_run_name=_name)
def pipeline(settings: Settings, resume: bool = True) -> dict[str, Any]:
    """From raw data to a reviewed result.

    Args:
        settings: of the run; the same model as the settings file and `--set`.
        resume: go on with an unfinished run of the same settings, where there is one.
    """
    if settings.workers.runner == "local":
        warm()  # worker processes import what they need while the data is prepared
    prepare(settings)
    with claimed_run(settings, resume=resume) as folder:
        end_lost_flow_runs(folder)
        with tags(settings.method.name, settings.data.name):
            result = federate(str(folder.path))
            evaluate(str(folder.path))
            report(str(folder.path))
        result_artifacts(folder)
    return result


def end_lost_flow_runs(folder: RunFolder) -> None:
    """Tell Prefect that the flow runs that worked on a run before are over.

    A process that was killed could not say so itself, and its flow runs would be shown as running for ever.
    Call it from the flow run that has the run now.
    """
    lost_run = (folder.lineage().get("prefect") or {}).get("flow_run")
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # Prefect knows them no more
        while lost_run and str(lost_run) != str(runtime.flow_run.id):
            run = client.read_flow_run(lost_run)
            if run.state is not None and run.state.is_running():
                about = f"its process was killed; flow run {runtime.flow_run.id} goes on with {folder.name}"
                client.set_flow_run_state(run.id, Crashed(message=about), force=True)
            parent = client.read_task_run(run.parent_task_run_id) if run.parent_task_run_id else None
            lost_run = parent.flow_run_id if parent is not None else None


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
