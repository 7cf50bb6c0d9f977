"""Prefect flows: prepare, federate, evaluate and report, composed in one pipeline."""

from __future__ import annotations

import contextlib
from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow, get_run_logger, runtime, tags  # noqa: E402 (its environment comes first)
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.states import Crashed  # noqa: E402

from shoal.engine.settings.run_settings import Settings  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.engine.workers.worker_processes import warm  # noqa: E402
from shoal.flows.federate import federate  # noqa: E402
from shoal.flows.finish import evaluate, report  # noqa: E402
from shoal.lifecycle.claim import claimed_run  # noqa: E402
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, VIEWS, drive, workers_kept  # noqa: E402
from shoal.review.results.result import run_result  # noqa: E402
from shoal.tasks import partition  # noqa: E402
from shoal.tasks import prepare as preparation  # noqa: E402
from shoal.tasks.prefect.artifacts import result_artifacts  # noqa: E402
from shoal.tasks.prefect.flow_run_names import flow_run_name  # noqa: E402
from shoal.tasks.prefect.parts import log_warnings, part  # noqa: E402
from shoal.tasks.prefect.stages import untagged  # noqa: E402


@flow(name="prepare", flow_run_name=flow_run_name)
def prepare(settings: Settings) -> dict[str, str]:
    """Prepare the data set and its partition, where that was not done before."""
    with untagged():
        data = preparation.prepare(settings)
        dealt = partition.partition(settings, data.folder)
    return {"data": data.folder, "partition": dealt.folder, "digest": dealt.digest}


@flow(name="pipeline", flow_run_name=flow_run_name)
def pipeline(settings: Settings, resume: bool = True) -> dict[str, Any]:
    """From raw data to a reviewed result.

    Args:
        settings: of the run; the same model as the settings file and `--set`.
        resume: go on with an unfinished run of the same settings, where there is one.

    Returns:
        What the run came to (`shoal.review.results.result.RunResult`), as JSON.
    """
    if settings.workers.runner == "local":
        warm()  # worker processes import what they need while the data is prepared
    part("preparation", lambda: prepare(settings), lambda: None, None)  # a new run prepares what is not there
    with claimed_run(settings, resume=resume) as folder:
        end_lost_flow_runs(folder)
        before = len(folder.events())
        with tags(settings.method.name, settings.data.name):
            train_and_judge(folder)
            report_on(folder)
        result_artifacts(folder)
        log_warnings(get_run_logger(), folder.events()[before:])
    return run_result(folder).to_json()


def train_and_judge(folder: RunFolder, seconds: float | None = None) -> None:
    """All rounds of a run, then its clusters, each as a flow run of its own, and without Prefect where that is away.

    Args:
        folder: of the run.
        seconds: time limit of each flow run; None: without. What is done without Prefect has none.
    """
    run = str(folder.path)
    training = federate.with_options(timeout_seconds=seconds)
    evaluation = evaluate.with_options(timeout_seconds=seconds)
    with workers_kept(folder):
        part("training", lambda: training(run), lambda: drive(folder, stages=(ROUNDS,)), folder)
        part("evaluation", lambda: evaluation(run), lambda: drive(folder, stages=(CLUSTERS,)), folder)


def report_on(folder: RunFolder, seconds: float | None = None) -> None:
    """Figures and report of a run, and its place in MLflow, likewise."""
    run = str(folder.path)
    reporting = report.with_options(timeout_seconds=seconds)
    part("report", lambda: reporting(run), lambda: drive(folder, stages=(VIEWS,)), folder)


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
