"""The task that computes the next server state."""

from __future__ import annotations

from prefect import task

from shoal.engine.messages.wire import Failed
from shoal.engine.rounds.units import AggregateRound
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="aggregate", **NO_RETRY)
def aggregate(round: AggregateRound, ticket: str | None = None) -> dict[int, Failed]:
    """Aggregate the clients' answers of a round; the new state is then in the run's folder.

    Args:
        round: the run's folder, the round and the ids of the clients that answered.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        The clients whose answers were refused, and why.
    """
    refused: dict[int, Failed] = execute_once(round, ticket)
    return refused
