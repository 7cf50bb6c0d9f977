"""Prefect flows: prepare, federate, evaluate and report, composed in one pipeline."""

from __future__ import annotations

from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow, get_run_logger, tags  # noqa: E402 (its environment comes first)

from shoal.engine.settings.run_settings import Settings  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.engine.workers.worker_processes import warm  # noqa: E402
from shoal.flows.artifacts import result_artifacts  # noqa: E402
from shoal.flows.claim import claimed_run  # noqa: E402
from shoal.flows.federate import federate  # noqa: E402
from shoal.flows.finish import evaluate, report  # noqa: E402
from shoal.flows.names import flow_run_name  # noqa: E402
from shoal.flows.parts import log_warnings, part  # noqa: E402
from shoal.flows.task_runs import untagged  # noqa: E402
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, VIEWS, drive, workers_kept  # noqa: E402
from shoal.review.results.result import run_result  # noqa: E402
from shoal.tasks import partition  # noqa: E402
from shoal.tasks import prepare as preparation  # noqa: E402


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
