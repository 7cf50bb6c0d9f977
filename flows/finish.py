"""The flows that follow the rounds of a run: the judgement of its final state, then figures, report and MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.tasks.prefect.environment import quiet

quiet()

from prefect import flow  # noqa: E402 (its environment comes first)

from shoal.engine.settings import places  # noqa: E402
from shoal.engine.store.run_folder import RunFolder  # noqa: E402
from shoal.lifecycle.driving import CLUSTERS, VIEWS  # noqa: E402
from shoal.tasks.prefect.artifacts import result_artifacts  # noqa: E402
from shoal.tasks.prefect.flow_run_names import flow_run_name  # noqa: E402
from shoal.tasks.prefect.stages import drive_as_task_runs  # noqa: E402


@flow(name="evaluate", flow_run_name=flow_run_name)
def evaluate(run: str, observers: Sequence[Any] = ()) -> dict[str, float]:
    """Find the cluster of every sample under the final state of a run, and how good the clusters are.

    The scores of the final state are those of the last round, which was evaluated in full.

    Args:
        run: the run's folder, its name, or `latest`; its rounds are done.
        observers: told of every event.

    Returns:
        Scores of the last round, and quality of the clusters, by name.
    """
    folder = RunFolder.find(run, places.runs())
    result = drive_as_task_runs(folder, (CLUSTERS,), observers)
    return {**result.metrics, **result.quality}


@flow(name="report", flow_run_name=flow_run_name)
def report(run: str, observers: Sequence[Any] = ()) -> str:
    """Draw the figures of a run, write report.html, log the run to MLflow; its table is an artifact.

    Args:
        run: the run's folder, its name, or `latest`; its rounds are done.
        observers: told of every event.

    Returns:
        Where the report is.
    """
    folder = RunFolder.find(run, places.runs())
    drive_as_task_runs(folder, (VIEWS,), observers)
    result_artifacts(folder)
    return str(folder.path / "report.html")
