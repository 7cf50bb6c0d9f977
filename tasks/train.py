"""The task that trains a cohort of clients of a round."""

from __future__ import annotations

from prefect import task

from engine.units import TrainCohort
from engine.wire import Failed, Trained
from tasks.once import done_once
from tasks.retries import OF_A_ROUND


@task(name="train", **OF_A_ROUND)
def train(cohort: TrainCohort, ticket: str | None = None) -> Trained | Failed | None:
    """Train some clients of a round on one worker; what each answers lies in the run's folder afterwards.

    Args:
        cohort: the run's folder, the round and the clients' ids.
        ticket: see `tasks.once`.

    Returns:
        What became of each client; None where the ticket's holder knows.
    """
    return done_once(cohort, ticket)
