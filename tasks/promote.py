"""The task that gives a run's model its name in MLflow's registry."""

from __future__ import annotations

from prefect import task

from shoal.review.served.record import PromoteModel
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="promote", **OF_A_ROUND)
def promote(run: PromoteModel, ticket: str | None = None) -> str | None:
    """Register the model of a logged run, and move its aliases: `newest`, and `challenger` or `champion`.

    Args:
        run: the run's folder.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        The version; None where there is none, or where the ticket's holder knows.
    """
    result: str | None = done_once(run, ticket)
    return result
