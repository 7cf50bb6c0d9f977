"""The task that logs a finished run to MLflow."""

from __future__ import annotations

from prefect import task

from shoal.review.served.record import LogRun
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="log", **NO_RETRY)
def log(run: LogRun, ticket: str | None = None) -> bool | None:
    """Log a finished run to MLflow: metrics, tables, figures, report, and its states as models.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        Whether MLflow has all of the run now; None where the runner has the answer already.
    """
    result: bool | None = execute_once(run, ticket)
    return result
