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
        sha256: hex digest of each file, by its path; runs of version 0.1.0 kept none.
    """

    memory: dict[int, str] = field(default_factory=dict)
    inbox: dict[int, list[str]] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "memory": {str(client): path for client, path in self.memory.items()},
            "inbox": {str(client): paths for client, paths in self.inbox.items()},
            "sha256": self.sha256,
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> MemoryIndex:
        """From JSON, whose keys are text."""
        return cls(
            {int(k): v for k, v in plain["memory"].items()},
            {int(k): list(v) for k, v in plain["inbox"].items()},
            dict(plain.get("sha256", {})),
        )

    def copy(self) -> MemoryIndex:
        """One that can be changed without changing this one."""
        inbox = {client: list(paths) for client, paths in self.inbox.items()}
        return MemoryIndex(dict(self.memory), inbox, dict(self.sha256))

    def files(self) -> set[str]:
        """Every file named."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}

    def only_digests_of_files(self) -> None:
        """Forget the digests of files that are no longer named."""
        named = self.files()
        self.sha256 = {path: digest for path, digest in self.sha256.items() if path in named}

    def of_client(self, client: int) -> dict[str, str]:
        """Digests of the files that a client's work begins from, by path."""
        paths = [*self.inbox.get(client, ()), *([self.memory[client]] if client in self.memory else [])]
        return {path: self.sha256[path] for path in paths if path in self.sha256}
