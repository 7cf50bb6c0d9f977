"""Artifacts on a flow run's page in Prefect: the result as a table, a link to the run in MLflow."""

from __future__ import annotations

import contextlib

from prefect.artifacts import create_link_artifact, create_table_artifact

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.tracking import mlflow_page
from shoal.review.results.result import run_result, shown_metrics


def result_artifacts(folder: RunFolder) -> None:
    """Show the result of a run on the flow run's page: a table, and a link to the run in MLflow."""
    result = run_result(folder)
    page = mlflow_page(folder)
    cells = {name: f"{value:.4f}" for name, value in shown_metrics(result).items()}
    cells |= {f"bytes {direction}": f"{count:,}" for direction, count in result.bytes.items()}
    cells |= {"MLflow run": str(result.mlflow_run), "folder": result.run}
    rows = [{"number": name, "value": value} for name, value in cells.items()]
    with contextlib.suppress(Exception):  # Prefect is out of reach: the run's folder has everything
        create_table_artifact(table=rows, description=folder.name)
        if page is not None:
            create_link_artifact(link=page, link_text=f"{folder.name} in MLflow")
