"""Clients whose messages were refused too often: they are not asked again."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.engine.store.tables import RunTables


@dataclass(frozen=True)
class Quarantine:
    """The quarantined clients of a run, by its manifests.

    Args:
        tables: tell in how many rounds each client was refused.
        limit: refused in so many rounds, a client is quarantined (`participation.refusals`); 0: never.
    """

    tables: RunTables
    limit: int

    @property
    def clients(self) -> list[int]:
        """Their ids, in order."""
        if not self.limit:
            return []
        return sorted(client for client, rounds in self.tables.refusals.items() if rounds >= self.limit)

    def refusals(self, client: int) -> int:
        """Return in how many rounds a client was refused."""
        return self.tables.refusals[client]
