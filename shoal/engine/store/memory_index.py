"""The index of the files with the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.engine.store.packed_map import PackedMap

MAX_WHOLE_ENTRIES = 1000
"""Most entries of an index that is written completely in each round."""


@dataclass(frozen=True)
class IndexChange:
    """The change of the index by a round.

    Args:
        read: the clients that took part, and so have read the messages in their inboxes.
        memory: new versions of memories, by client.
        sent: new messages, by receiver, in order of their senders.
        sha256: digests of all these files, by path.
    """

    read: tuple[int, ...]
    memory: Mapping[int, str]
    sent: Mapping[int, tuple[str, ...]]
    sha256: Mapping[str, str]

    @property
    def entries(self) -> int:
        """The number of changed entries."""
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
    def from_json(cls, entries: dict[str, Any]) -> IndexChange:
        """Return the change from its JSON, in which the keys are text."""
        return cls(
            tuple(int(client) for client in entries["read"]),
            {int(k): v for k, v in entries["memory"].items()},
            {int(k): tuple(v) for k, v in entries["sent"].items()},
            dict(entries["sha256"]),
        )


@dataclass(frozen=True)
class MemoryIndex:
    """The files of memories and inboxes by client (links.json of a checkpoint); paths are relative to the run's folder.

    The maps share unchanged entries with those of the round before, so that an index costs as much as the clients of
    the round changed, however many clients there are.

    Args:
        memory: the newest version of the memory of each client that has one.
        inbox: the pending messages to each client, in order of round and sender.
        digests: hex digests of each client's files, by path.
        change: the change since the round before, if only that is written; None: the index is written completely.
        changed: number of entries that have changed since the index was last written completely.
        dropped: files of the index of the round before that are not in this one.
        new: files that are not in the index of the round before.
    """

    memory: PackedMap[str] = field(default_factory=PackedMap)
    inbox: PackedMap[tuple[str, ...]] = field(default_factory=PackedMap)
    digests: PackedMap[dict[str, str]] = field(default_factory=PackedMap)
    change: IndexChange | None = field(default=None, compare=False)
    changed: int = field(default=0, compare=False)
    dropped: tuple[str, ...] = field(default=(), compare=False)
    new: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the complete index as JSON."""
        return {
            "memory": {str(client): path for client, path in self.memory.items()},
            "inbox": {str(client): list(paths) for client, paths in self.inbox.items()},
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> MemoryIndex:
        """Return the index from its JSON, in which the keys are text."""
        memory = {int(k): v for k, v in entries["memory"].items()}
        inbox = {int(k): tuple(v) for k, v in entries["inbox"].items()}
        known = dict(entries["sha256"])
        digests = {}
        for client in memory.keys() | inbox.keys():
            paths = (*inbox.get(client, ()), *((memory[client],) if client in memory else ()))
            if own := digests_of(paths, known):
                digests[client] = own
        return cls(PackedMap.from_mapping(memory), PackedMap.from_mapping(inbox), PackedMap.from_mapping(digests))

    @property
    def sha256(self) -> dict[str, str]:
        """Hex digest of each file, by its path."""
        return {path: digest for own in self.digests.values() for path, digest in own.items()}

    def after(self, change: IndexChange) -> MemoryIndex:
        """Return the index after one more round."""
        dropped: list[str] = []
        memory = self.memory
        inbox = self.inbox
        touched = {*change.read, *change.memory, *change.sent}
        new_digests = {client: self.client_digests(client) for client in touched}
        for client in change.read:
            if client in inbox:
                for path in inbox[client]:
                    dropped.append(path)
                    new_digests[client].pop(path, None)
                inbox = inbox.discard(client)
        for client, path in change.memory.items():
            before = memory.get(client, path)
            if before != path:
                dropped.append(before)
                new_digests[client].pop(before, None)
            memory = memory.insert(client, path)
            new_digests[client] |= digests_of((path,), change.sha256)
        for client, paths in change.sent.items():
            inbox = inbox.insert(client, (*inbox.get(client, ()), *paths))
            new_digests[client] |= digests_of(paths, change.sha256)
        digests = with_digests(self.digests, new_digests)
        index = MemoryIndex(memory, inbox, digests, dropped=tuple(dropped), new=tuple(change.sha256))
        # Written completely so rarely that all that is written stays in proportion to what changed.
        entries = len(memory) + len(inbox)
        changed = self.changed + change.entries
        if entries <= MAX_WHOLE_ENTRIES or changed > entries:
            return index
        return replace(index, change=change, changed=changed)

    def files(self) -> set[str]:
        """Return the path of every file in the index."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}

    def client_digests(self, client: int) -> dict[str, str]:
        """Return the digests of a client's files, by path."""
        return dict(self.digests.get(client, {}))


def with_digests(digests: PackedMap[dict[str, str]], new: Mapping[int, dict[str, str]]) -> PackedMap[dict[str, str]]:
    """Return digests by client after replacing those of some clients; a client without files has no entry."""
    for client, own in new.items():
        digests = digests.insert(client, own) if own else digests.discard(client)
    return digests


def digests_of(paths: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the paths whose digest is known, by path."""
    return {path: known[path] for path in paths if path in known}
