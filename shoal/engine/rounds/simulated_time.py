"""Simulated time: the time of a run's rounds with clients of unequal speed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.outcomes import RoundOutcomes


@dataclass
class SimulatedTime:
    """The simulated time of a run.

    Args:
        active_run: the run.
        now: time since the run began, in units of the time of a client of usual speed.
    """

    active_run: ActiveRun
    now: float = 0.0

    def resume(self, metrics: Mapping[str, float]) -> None:
        """Set the time from the metrics of a closed round."""
        self.now = metrics.get("simulated_time", self.now)

    def metrics(self, round: int, outcomes: RoundOutcomes) -> dict[str, float]:
        """Return the time after a round and the mean age of its answers; empty if time is not simulated."""
        schedule = self.active_run.answer_schedule
        if schedule is not None:
            ages = [round - 1 - self.active_run.begun_from(round, client) for client in outcomes.done]
            return {"simulated_time": schedule.round(round).time, "staleness": statistics.fmean(ages)}
        if self.active_run.opened.settings.participation.speed_spread:
            self.now += max(self.active_run.speeds.time(client) for client in outcomes.asked)
            return {"simulated_time": self.now}
        return {}
