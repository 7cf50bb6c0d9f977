"""Which files hold the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.engine.store.packed_map import PackedMap

MAX_WHOLE_ENTRIES = 1000
"""An index of at most so many entries is written whole in each round."""


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
        """Return the change as JSON."""
        return {
            "read": list(self.read),
            "memory": {str(client): path for client, path in self.memory.items()},
            "sent": {str(client): list(paths) for client, paths in self.sent.items()},
            "sha256": dict(self.sha256),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> IndexChange:
        """Read it from JSON, whose keys are text."""
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
        """Return the whole index as JSON."""
        return {
            "memory": {str(client): path for client, path in self.memory.items()},
            "inbox": {str(client): list(paths) for client, paths in self.inbox.items()},
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> MemoryIndex:
        """Read it from JSON, whose keys are text."""
        memory = {int(k): v for k, v in plain["memory"].items()}
        inbox = {int(k): tuple(v) for k, v in plain["inbox"].items()}
        known = dict(plain["sha256"])
        digests = {}
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
        """Return the index after one more round."""
        dropped: list[str] = []
        memory = self.memory
        inbox = self.inbox
        touched = {*change.read, *change.memory, *change.sent}
        digests_of_client = {client: dict(self.digests.get(client, {})) for client in touched}
        for client in change.read:
            if client in inbox:
                for path in inbox[client]:
                    dropped.append(path)
                    digests_of_client[client].pop(path, None)
                inbox = inbox.discard(client)
        for client, path in change.memory.items():
            before = memory.get(client, path)
            if before != path:
                dropped.append(before)
                digests_of_client[client].pop(before, None)
            memory = memory.insert(client, path)
            digests_of_client[client] |= digests_of((path,), change.sha256)
        for client, paths in change.sent.items():
            inbox = inbox.insert(client, (*inbox.get(client, ()), *paths))
            digests_of_client[client] |= digests_of(paths, change.sha256)
        digests = with_digests(self.digests, digests_of_client)
        new = MemoryIndex(memory, inbox, digests, dropped=tuple(dropped), new=tuple(change.sha256))
        # Written whole as often as keeps the sum of what is written in proportion to what changed.
        entries = len(memory) + len(inbox)
        changed = self.changed + change.entries
        if entries <= MAX_WHOLE_ENTRIES or changed > entries:
            return new
        return replace(new, change=change, changed=changed)

    def files(self) -> set[str]:
        """Return the path of every file in the index."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}

    def of_client(self, client: int) -> dict[str, str]:
        """Return the digests of the files that a client's work begins from, by path."""
        return dict(self.digests.get(client, {}))


def with_digests(digests: PackedMap[dict[str, str]], held: Mapping[int, dict[str, str]]) -> PackedMap[dict[str, str]]:
    """Return digests by client, with those of some clients replaced; a client without files has no entry."""
    for client, of_client in held.items():
        digests = digests.insert(client, of_client) if of_client else digests.discard(client)
    return digests


def digests_of(paths: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the paths whose digest is known, by path."""
    return {path: known[path] for path in paths if path in known}
