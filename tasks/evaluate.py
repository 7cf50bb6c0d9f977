"""The task that computes the metrics of a round."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="evaluate", **NO_RETRY)
def evaluate(work: SingleExecution) -> None:
    """Have workers compute the metrics of a round's server state."""
    work()
