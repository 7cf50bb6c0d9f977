"""The task that registers a run's model in MLflow."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="register", **NO_RETRY)
def register(work: SingleExecution) -> None:
    """Register the model of a logged run, and move the alias `challenger` or `champion`."""
    work()
