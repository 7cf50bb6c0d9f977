"""The events of a round about its clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.rounds.quarantine import Quarantine


@dataclass(frozen=True)
class RoundEvents:
    """Logs the events of rounds.

    Args:
        quarantine: the clients that take no more part.
        tell: logs an event (its kind, and facts by name).
    """

    quarantine: Quarantine
    tell: Callable[..., None]

    def started(self, round: int, clients: int, outcomes: RoundOutcomes) -> None:
        """Log that a round begins, with its number of clients, and which clients dropped out."""
        self.tell("round_started", round=round, clients=clients)
        if outcomes.dropped:
            self.tell("clients_dropped", round=round, clients=outcomes.dropped)

    def left_out(self, round: int, outcomes: RoundOutcomes) -> None:
        """Log which clients the round continues without, and why."""
        refused = set(outcomes.refused)
        for client, failure in outcomes.failures.items():
            kind = "client_left_out"
            if client in refused:
                kind = "client_refused"
            self.tell(kind, round=round, client=client, message=failure.error)

    def finished(self, round: int, outcomes: RoundOutcomes, metrics: dict[str, float], seconds: float) -> None:
        """Log that a round is done, and which of its refused clients are now quarantined."""
        for client in sorted(set(outcomes.refused) & set(self.quarantine.clients)):
            message = f"client {client} was refused in {self.quarantine.refusals(client)} rounds: it is not asked again"
            self.tell("client_quarantined", round=round, client=client, message=message)
        self.tell("round_finished", round=round, metrics=metrics, seconds=seconds)
