"""The index of the files with the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from shoal.engine.store.round_paths import inbox_path, memory_path
from shoal.methods.contract.message import Tensors

DIGEST_BYTES = 32


@dataclass(frozen=True)
class ClientFiles:
    """The files from which a client's work begins; paths are relative to the run's folder.

    Args:
        client: the client's id.
        memory: its newest private memory; None: it has none.
        inbox: messages to it from other clients.
        sha256: hex digest of each of these files, by its path.
        message: the files of the server's message to it (`shoal.engine.messages.broadcasts`).
    """

    client: int
    memory: str | None = None
    inbox: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    message: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All these files."""
        memory = () if self.memory is None else (self.memory,)
        return (*self.message, *memory, *self.inbox)


def no_rows(columns: int, dtype: type) -> np.ndarray:
    """Return an array (0, columns)."""
    return np.zeros((0, columns), dtype)


@dataclass(frozen=True, eq=False)
class MemoryIndex:
    """The newest memory of each client and the messages that it has not read (memories.safetensors of a checkpoint).

    A round copies these few arrays, which takes milliseconds even for a million clients.

    Args:
        memory: round in which the newest memory of each client was written, int32 (clients,); 0: it has none.
        memory_sha256: digests of these files, uint8 (clients, 32).
        inbox: receiver, sender and round of each pending message, int32 (messages, 3), ordered by round and sender.
        inbox_sha256: digests of these files, uint8 (messages, 32).
    """

    memory: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    memory_sha256: np.ndarray = field(default_factory=lambda: no_rows(DIGEST_BYTES, np.uint8))
    inbox: np.ndarray = field(default_factory=lambda: no_rows(3, np.int32))
    inbox_sha256: np.ndarray = field(default_factory=lambda: no_rows(DIGEST_BYTES, np.uint8))

    def tensors(self) -> Tensors:
        """Return the arrays as tensors, by name."""
        return {name: torch.from_numpy(array) for name, array in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> MemoryIndex:
        """Return the index that `tensors` returned."""
        return cls(**{name: tensor.numpy() for name, tensor in tensors.items()})

    def after(
        self, round: int, read: Sequence[int], memory: Mapping[int, str], sent: Mapping[tuple[int, int], str]
    ) -> MemoryIndex:
        """Return the index after a round.

        Args:
            round: the round.
            read: the clients that took part, and so have read their messages.
            memory: digests of new memories, by client.
            sent: digests of new messages, by receiver and sender, in order of the senders.
        """
        new = max(0, max(memory, default=-1) + 1 - len(self.memory))
        rounds = np.pad(self.memory, (0, new))
        digests = np.pad(self.memory_sha256, ((0, new), (0, 0)))
        for client, sha256 in memory.items():
            rounds[client] = round
            digests[client] = bytes_of(sha256)
        unread = ~np.isin(self.inbox[:, 0], np.array(read, np.int32))
        messages = [(*ends, round) for ends in sent]
        return MemoryIndex(
            rounds,
            digests,
            np.concatenate([self.inbox[unread], np.array(messages, np.int32).reshape(-1, 3)]),
            np.concatenate([self.inbox_sha256[unread], *(bytes_of(sha256)[None] for sha256 in sent.values())]),
        )

    def client(self, client: int) -> ClientFiles:
        """Return the files of a client."""
        memory = None
        sha256 = {}
        if client < len(self.memory) and self.memory[client]:
            memory = memory_path(client, int(self.memory[client]))
            sha256[memory] = hex_of(self.memory_sha256[client])
        inbox = []
        for row in np.flatnonzero(self.inbox[:, 0] == client):
            path = inbox_path(*self.inbox[row].tolist())
            inbox.append(path)
            sha256[path] = hex_of(self.inbox_sha256[row])
        return ClientFiles(client, memory, tuple(inbox), sha256)

    def clients(self) -> tuple[ClientFiles, ...]:
        """Return the files of each client that has any."""
        numbers = np.union1d(np.flatnonzero(self.memory), self.inbox[:, 0])
        return tuple(self.client(client) for client in numbers.tolist())

    def files(self) -> dict[str, str]:
        """Return the digest of every file, by its path."""
        return {path: sha256 for files in self.clients() for path, sha256 in files.sha256.items()}

    def replaced_by(self, later: MemoryIndex) -> list[str]:
        """Return the files of this index that are not in the one of a later round."""
        memory = np.flatnonzero((self.memory != later.memory[: len(self.memory)]) & (self.memory > 0))
        pending = set(map(tuple, later.inbox.tolist()))
        return [
            *(memory_path(client, int(self.memory[client])) for client in memory.tolist()),
            *(inbox_path(*message) for message in self.inbox.tolist() if tuple(message) not in pending),
        ]


def bytes_of(sha256: str) -> np.ndarray:
    """Return a hex digest as uint8 (32,)."""
    return np.frombuffer(bytes.fromhex(sha256), np.uint8)


def hex_of(digest: np.ndarray) -> str:
    """Return a digest uint8 (32,) in hex."""
    return digest.tobytes().hex()
