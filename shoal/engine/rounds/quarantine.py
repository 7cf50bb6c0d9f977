"""Quarantine: a client whose messages were refused too often takes no more part in its run."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.engine.store.tables import RunTables

MAX_REFUSALS = 3
"""Rounds in which a client's message is refused before the client is quarantined."""


@dataclass(frozen=True)
class Quarantine:
    """The quarantined clients of a run, by its manifests.

    Args:
        tables: have the number of rounds in which each client was refused.
    """

    tables: RunTables

    @property
    def clients(self) -> list[int]:
        """The ids of the quarantined clients, in order."""
        return sorted(client for client, rounds in self.tables.refusals.items() if rounds >= MAX_REFUSALS)

    def refusals(self, client: int) -> int:
        """Return the number of rounds in which a client was refused."""
        return self.tables.refusals[client]
