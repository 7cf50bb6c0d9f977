"""The task that trains a cohort of clients of a round."""

from __future__ import annotations

from prefect import task

from shoal.engine.messages.wire import Failed, Trained
from shoal.engine.rounds.units import TrainCohort
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="train", **NO_RETRY)
def train(cohort: TrainCohort, ticket: str | None = None) -> Trained | Failed | None:
    """Train some clients of a round on one worker; their answers are then in the run's folder.

    Args:
        cohort: the run's folder, the round and the clients' ids.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        The outcome of each client; None where the runner has it already.
    """
    result: Trained | Failed | None = execute_once(cohort, ticket)
    return result
