"""Which files hold the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.engine.store.packed_map import PackedMap

FEW = 1000
"""Entries of an index that is written whole each round."""


@dataclass(frozen=True)
class IndexChange:
    """What a round changes in the index.

    Args:
        read: the clients that took part: what waited for them has been read.
        memory: the new versions, by client.
        sent: new messages, by the client that they wait for, in order of their senders.
        sha256: digests of all of these files, by their paths.
    """

    read: tuple[int, ...]
    memory: Mapping[int, str]
    sent: Mapping[int, tuple[str, ...]]
    sha256: Mapping[str, str]

    @property
    def entries(self) -> int:
        """How many entries it touches."""
        return len(self.read) + len(self.memory) + len(self.sent)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "read": list(self.read),
            "memory": {str(client): path for client, path in self.memory.items()},
            "sent": {str(client): list(paths) for client, paths in self.sent.items()},
            "sha256": dict(self.sha256),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> IndexChange:
        """From JSON, whose keys are text."""
        return cls(
            tuple(int(client) for client in plain["read"]),
            {int(k): v for k, v in plain["memory"].items()},
            {int(k): tuple(v) for k, v in plain["sent"].items()},
            dict(plain["sha256"]),
        )


@dataclass(frozen=True)
class MemoryIndex:
    """Files of memory and inbox by client; paths are relative to the run's folder (links.json of a checkpoint).

    The maps share what they have in common with those of the round before: an index after a round costs what the
    clients of the round changed, however many clients there are.

    Args:
        memory: the newest version of each client's memory, of those that have one.
        inbox: the messages that wait for a client, in order of round and sender.
        digests: of each client's files, in hex by path.
        change: what makes it from the index of the round before, where that is how it is written; None: whole.
        changed: entries that were changed since the last round whose index was written whole.
        dropped: files that the round before named, and this one does not; `new` those that came with the round.
    """

    memory: PackedMap[str] = field(default_factory=PackedMap)
    inbox: PackedMap[tuple[str, ...]] = field(default_factory=PackedMap)
    digests: PackedMap[dict[str, str]] = field(default_factory=PackedMap)
    change: IndexChange | None = field(default=None, compare=False)
    changed: int = field(default=0, compare=False)
    dropped: tuple[str, ...] = field(default=(), compare=False)
    new: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON, whole."""
        return {
            "memory": {str(client): path for client, path in self.memory.items()},
            "inbox": {str(client): list(paths) for client, paths in self.inbox.items()},
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> MemoryIndex:
        """From JSON, whose keys are text."""
        memory = {int(k): v for k, v in plain["memory"].items()}
        inbox = {int(k): tuple(v) for k, v in plain["inbox"].items()}
        known, digests = dict(plain["sha256"]), {}
        for client in memory.keys() | inbox.keys():
            paths = (*inbox.get(client, ()), *((memory[client],) if client in memory else ()))
            if held := digests_of(paths, known):
                digests[client] = held
        return cls(PackedMap.from_mapping(memory), PackedMap.from_mapping(inbox), PackedMap.from_mapping(digests))

    @property
    def sha256(self) -> dict[str, str]:
        """Hex digest of each file, by its path."""
        return {path: digest for held in self.digests.values() for path, digest in held.items()}

    def after(self, change: IndexChange) -> MemoryIndex:
        """The index after one more round."""
        dropped: list[str] = []
        memory, inbox, digests = self.memory, self.inbox, self.digests
        held: dict[int, dict[str, str]] = {}
        for client in {*change.read, *change.memory, *change.sent}:
            held[client] = dict(digests.get(client, {}))
        for client in change.read:
            if client in inbox:
                for path in inbox[client]:
                    dropped.append(path)
                    held[client].pop(path, None)
                inbox = inbox.discard(client)
        for client, path in change.memory.items():
            before = memory.get(client, path)
            if before != path:
                dropped.append(before)
                held[client].pop(before, None)
            memory = memory.insert(client, path)
            held[client] |= digests_of((path,), change.sha256)
        for client, paths in change.sent.items():
            inbox = inbox.insert(client, (*inbox.get(client, ()), *paths))
            held[client] |= digests_of(paths, change.sha256)
        for client, of_client in held.items():
            digests = digests.insert(client, of_client) if of_client else digests.discard(client)
        # Written whole as often as keeps the sum of what is written in proportion to what changed.
        entries, changed = len(memory) + len(inbox), self.changed + change.entries
        whole = entries <= FEW or changed > entries
        return MemoryIndex(
            memory,
            inbox,
            digests,
            None if whole else change,
            0 if whole else changed,
            tuple(dropped),
            tuple(change.sha256),
        )

    def files(self) -> set[str]:
        """Every file named."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}

    def of_client(self, client: int) -> dict[str, str]:
        """Digests of the files that a client's work begins from, by path."""
        return dict(self.digests.get(client, {}))


def digests_of(paths: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The digests of those of the paths whose digest is known."""
    return {path: known[path] for path in paths if path in known}
