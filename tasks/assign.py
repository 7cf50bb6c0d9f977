"""The task that finds the cluster of every sample, after the last round."""

from __future__ import annotations

from prefect import task

from shoal.tasks.prefect.once import SingleExecution
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="assign", **NO_RETRY)
def assign(work: SingleExecution) -> None:
    """Have a worker assign a cluster to every sample; the table is then in the run's folder."""
    work()
