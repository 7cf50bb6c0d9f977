"""The task that has MLflow keep a run whole."""

from __future__ import annotations

from prefect import task

from shoal.review.served.record import LogRun
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="log", **OF_A_ROUND)
def log(run: LogRun, ticket: str | None = None) -> bool | None:
    """Log a run whose rounds are done to MLflow: metrics, tables, figures, report, and its states as models.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        Whether MLflow has the run now; None where the ticket's holder knows.
    """
    result: bool | None = done_once(run, ticket)
    return result
