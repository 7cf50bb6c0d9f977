"""The task that computes the next server state."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="aggregate", **NO_RETRY)
def aggregate(work: SingleExecution) -> None:
    """Aggregate the clients' answers of a round; the new state is then in the run's folder."""
    work()
