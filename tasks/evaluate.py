"""The task that computes the metrics of a round."""

from __future__ import annotations

from prefect import task

from shoal.engine.messages.wire import Evaluated, Failed
from shoal.engine.rounds.units import EvaluateRound
from shoal.tasks.prefect.once import execute_once
from shoal.tasks.prefect.retries import NO_RETRY


@task(name="evaluate", **NO_RETRY)
def evaluate(round: EvaluateRound, ticket: str | None = None) -> Evaluated | Failed | None:
    """Have a worker compute the metrics of a round's server state.

    Args:
        round: the run's folder and the round.
        ticket: see `shoal.tasks.prefect.once`.

    Returns:
        The metrics; None where the runner has them already.
    """
    result: Evaluated | Failed | None = execute_once(round, ticket)
    return result
