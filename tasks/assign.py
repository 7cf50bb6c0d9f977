"""The task that finds the cluster of every sample, after the last round."""

from __future__ import annotations

from prefect import task

from shoal.review.results.clusters import FindClusters
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="assign", **OF_A_ROUND)
def assign(run: FindClusters, ticket: str | None = None) -> bool | None:
    """Have a worker give every sample its cluster; the table lies in the run's folder afterwards.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        Whether the run has a table now; None where the ticket's holder knows.
    """
    result: bool | None = done_once(run, ticket)
    return result
