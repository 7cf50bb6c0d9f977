"""The task that makes the next server state of a round."""

from __future__ import annotations

from prefect import task

from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.units import AggregateRound
from shoal.tasks.prefect.once import done_once
from shoal.tasks.prefect.retries import OF_A_ROUND


@task(name="aggregate", **OF_A_ROUND)
def aggregate(round: AggregateRound, ticket: str | None = None) -> dict[int, Failed]:
    """Aggregate what the clients of a round answered; the new state lies in the run's folder afterwards.

    Args:
        round: the run's folder, the round and the ids of the clients that came through.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        Whose answers were not taken, and why.
    """
    refused: dict[int, Failed] = done_once(round, ticket)
    return refused
