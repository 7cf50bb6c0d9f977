"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shoal.engine.rounds.active_run import ActiveRun
from shoal.engine.rounds.dropout import answering
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.quarantine import Quarantine
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class ClientSampling:
    """Draws the clients of rounds.

    Args:
        active_run: the run.
        quarantine: the clients that are not asked any more.
    """

    active_run: ActiveRun
    quarantine: Quarantine

    def sample(self, server: Server, without: Iterable[int] = ()) -> list[int]:
        """Return the clients to train in the next round, without quarantined ones and those in `without`."""
        away = frozenset(self.quarantine.clients) | frozenset(without)
        opened = self.active_run.opened
        schedule = self.active_run.answer_schedule
        if schedule is not None:
            scheduled = [client for client in schedule.round(server.round + 1).begun_from if client not in away]
            if scheduled:
                return scheduled
        drawn = opened.method.sample_clients(server, replace(opened.federation, quarantined=away))
        return drawn[: opened.settings.participation.buffer]

    def draw(self, server: Server, outcomes: RoundOutcomes) -> list[int]:
        """Return the clients that answer in the round after a state; those that drop out are added to its outcomes."""
        return self._answering(server.round + 1, self.sample(server), outcomes)

    def draw_others(self, server: Server, outcomes: RoundOutcomes) -> list[int]:
        """Return clients in place of those that were refused, as `draw`; none where no other can be drawn."""
        if not outcomes.refused or self.active_run.answer_schedule is not None:
            return []
        others = [client for client in self.sample(server, outcomes.refused) if client not in outcomes.known]
        return self._answering(server.round + 1, others, outcomes) if others else []

    def _answering(self, round: int, drawn: list[int], outcomes: RoundOutcomes) -> list[int]:
        """Return which of the clients that were drawn answer; simulated dropout takes the others."""
        if self.active_run.answer_schedule is not None:  # it only names clients that answer
            return drawn
        settings = self.active_run.opened.settings
        answer = answering(drawn, round, settings.seed, settings.participation.dropout)
        outcomes.drop(sorted(set(drawn) - set(answer)))
        return answer
