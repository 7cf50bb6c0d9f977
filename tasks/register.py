"""The task that registers a run's model in MLflow."""

from __future__ import annotations

from prefect import task

from shoal.review.served.record import RegisterModel
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="register", **NO_RETRY)
def register(run: RegisterModel, ticket: str | None = None) -> str | None:
    """Register the model of a logged run, and move the alias `challenger` or `champion`.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        The version; None where there is none, or where the runner has it already.
    """
    result: str | None = execute_once(run, ticket)
    return result
