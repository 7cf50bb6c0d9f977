"""The task that trains a cohort of clients of a round."""

from __future__ import annotations

from prefect import task

from shoal.engine.messages.wire import Failed, Trained
from shoal.engine.rounds.units import TrainCohort
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="train", **OF_A_ROUND)
def train(cohort: TrainCohort, ticket: str | None = None) -> Trained | Failed | None:
    """Train some clients of a round on one worker; what each answers lies in the run's folder afterwards.

    Args:
        cohort: the run's folder, the round and the clients' ids.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        What became of each client; None where the ticket's holder knows.
    """
    result: Trained | Failed | None = done_once(cohort, ticket)
    return result
