"""Quarantine: a client whose messages were refused too often takes no more part in its run."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.engine.rounds.client_history import ClientHistory

MAX_REFUSALS = 3
"""Rounds in which a client's message is refused before the client is quarantined."""


@dataclass(frozen=True)
class Quarantine:
    """The quarantined clients of a run, by its manifests.

    Args:
        history: the number of rounds in which each client was refused.
    """

    history: ClientHistory

    @property
    def clients(self) -> list[int]:
        """The ids of the quarantined clients, in order."""
        return sorted(client for client, rounds in self.history.refusals.items() if rounds >= MAX_REFUSALS)

    def refusals(self, client: int) -> int:
        """Return the number of rounds in which a client was refused."""
        return self.history.refusals[client]
