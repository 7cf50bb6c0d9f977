"""Simulated time: when the answers of an asynchronous round would have arrived."""

from __future__ import annotations

import statistics

from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.outcomes import RoundOutcomes


def simulated_time(active_run: ActiveRun, round: int, outcomes: RoundOutcomes) -> dict[str, float]:
    """Return the simulated time after a round and the mean age of its answers; empty for a round that waits for all."""
    schedule = active_run.answer_schedule
    if schedule is None:
        return {}
    ages = [round - 1 - active_run.begun_from(round, client) for client in outcomes.done]
    return {"simulated_time": schedule.round(round).time, "staleness": statistics.fmean(ages)}
