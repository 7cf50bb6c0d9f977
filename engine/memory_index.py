"""Which files hold the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class MemoryIndex:
    """Files of memory and inbox by client; paths are relative to the run's folder (links.json of a checkpoint).

    Args:
        memory: the newest version of each client's memory, of those that have one.
        inbox: the messages that wait for a client, in order of round and sender.
    """

    memory: dict[int, str] = field(default_factory=dict)
    inbox: dict[int, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"memory": self.memory, "inbox": self.inbox}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> MemoryIndex:
        """From JSON, whose keys are text."""
        return cls(
            {int(k): v for k, v in plain["memory"].items()}, {int(k): list(v) for k, v in plain["inbox"].items()}
        )

    def copy(self) -> MemoryIndex:
        """One that can be changed without changing this one."""
        return MemoryIndex(dict(self.memory), {client: list(paths) for client, paths in self.inbox.items()})

    def files(self) -> set[str]:
        """Every file named."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}
