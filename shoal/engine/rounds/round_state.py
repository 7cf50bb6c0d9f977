"""The state of a run after a round."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.engine.store.memory_index import MemoryIndex
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class RoundState:
    """What the lead of a run keeps between rounds.

    Args:
        server: the server's state.
        memory_index: the files of the clients' memories and of the messages in their inboxes.
    """

    server: Server
    memory_index: MemoryIndex

    @property
    def round(self) -> int:
        """The number of rounds done."""
        return self.server.round
