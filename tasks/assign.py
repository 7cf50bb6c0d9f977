"""The task that finds the cluster of every sample, after the last round."""

from __future__ import annotations

from prefect import task

from shoal.review.results.clusters import FindClusters
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="assign", **NO_RETRY)
def assign(run: FindClusters, ticket: str | None = None) -> bool | None:
    """Have a worker assign a cluster to every sample; the table is then in the run's folder.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        Whether the run has a table now; None where the runner has the answer already.
    """
    result: bool | None = execute_once(run, ticket)
    return result
