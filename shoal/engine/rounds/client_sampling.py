"""The step of the loop that draws the clients of a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from shoal.engine.rounds.buffered_rounds import BufferedRounds
from shoal.engine.rounds.client_history import ClientHistory
from shoal.engine.rounds.dropout import answering_clients
from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.store.run_facts import RunFacts
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class ClientSampling:
    """Draws the clients of rounds.

    Args:
        facts: of the run.
        buffered: has the schedule of answers, if rounds do not wait for all their clients.
        history: names the quarantined clients.
    """

    facts: RunFacts
    buffered: BufferedRounds
    history: ClientHistory

    def sample(self, server: Server, without: Iterable[int] = ()) -> list[int]:
        """Return the clients to train in the next round, without quarantined ones and those in `without`.

        Those that were lost in this round, before an interruption, are drawn as they were.
        """
        excluded = frozenset(self.history.quarantined) - self.lost_in(server.round + 1) | frozenset(without)
        schedule = self.buffered.schedule
        if schedule is not None:
            scheduled = [client for client in schedule.round(server.round + 1).begun_from if client not in excluded]
            if scheduled:
                return scheduled
        federation = replace(self.facts.federation, quarantined=excluded)
        return self.facts.method.sample_clients(server, federation)[: self.facts.settings.participation.buffer]

    def draw(self, server: Server, outcomes: RoundOutcomes) -> list[int]:
        """Return the clients that answer in the next round; add those that drop out to its outcomes."""
        drawn = self._drop_out(server.round + 1, self.sample(server), outcomes)
        return [client for client in drawn if client not in self.lost_in(server.round + 1)]

    def lost_in(self, round: int) -> set[int]:
        """Return the clients that were lost in a round."""
        return {client for client, of_round in self.history.lost.items() if of_round == round}

    def draw_others(self, server: Server, outcomes: RoundOutcomes) -> list[int]:
        """Return replacements of the refused clients, as `draw`; empty if there are none."""
        if not outcomes.refused or self.buffered.schedule is not None:
            return []
        others = [client for client in self.sample(server, outcomes.refused) if client not in outcomes.drawn]
        if not others:
            return []
        return self._drop_out(server.round + 1, others, outcomes)

    def _drop_out(self, round: int, drawn: list[int], outcomes: RoundOutcomes) -> list[int]:
        """Let drawn clients drop out (`participation.dropout`), and return the others."""
        if self.buffered.schedule is not None:  # it names only clients that answer
            return drawn
        settings = self.facts.settings
        answer = answering_clients(drawn, round, settings.seed, settings.participation.dropout)
        outcomes.dropped += sorted(set(drawn) - set(answer))
        return answer
