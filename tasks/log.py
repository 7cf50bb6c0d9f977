"""The task that logs a finished run to MLflow."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="log", **NO_RETRY)
def log(work: SingleExecution) -> None:
    """Log a finished run to MLflow: metrics, tables, figures, report, and its states as models."""
    work()
