"""The index of the files with the clients' private memories and pending peer messages after a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from shoal.engine.store.round_paths import inbox_path, memory_path
from shoal.methods.contract.message import Tensors


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


ROW = np.dtype([("client", "<i4"), ("sender", "<i4"), ("round", "<i4"), ("sha256", "S64")])
"""A file: the client that it belongs to, the sender of a message, or `OWN`, the round, and the hex digest."""
OWN = -1
"""Stands in place of a sender for a client's own memory."""


@dataclass(frozen=True, eq=False)
class MemoryIndex:
    """The newest memory of each client and the messages that it has not read (memories.safetensors of a checkpoint).

    Args:
        rows: the files, `ROW` (files,), by client; those of one client in the order in which they were written.
        replaced: paths of the files that the last round has replaced, which are in no later index.
    """

    rows: np.ndarray = field(default_factory=lambda: np.empty(0, ROW))
    replaced: tuple[str, ...] = ()

    def tensors(self) -> Tensors:
        """Return the files as a tensor of bytes."""
        return {"files": torch.from_numpy(self.rows.view(np.uint8))}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> MemoryIndex:
        """Return the index that `tensors` returned."""
        return cls(tensors["files"].numpy().view(ROW))

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
        client = self.rows["client"]
        own = self.rows["sender"] == OWN
        gone = np.where(own, np.isin(client, list(memory)), np.isin(client, list(read)))
        new = [(number, OWN, round, sha256) for number, sha256 in memory.items()]
        new += [(*ends, round, sha256) for ends, sha256 in sent.items()]
        rows = np.concatenate([self.rows[~gone], np.array(new, ROW)])
        replaced = tuple(path_of(*row) for row in self.rows[gone].tolist())
        return MemoryIndex(rows[np.argsort(rows["client"], kind="stable")], replaced)

    def client(self, client: int) -> ClientFiles:
        """Return the files of a client."""
        first, end = np.searchsorted(self.rows["client"], (client, client + 1))
        rows = self.rows[first:end].tolist()
        memory = next((path_of(*row) for row in rows if row[1] == OWN), None)
        inbox = tuple(path_of(*row) for row in rows if row[1] != OWN)
        return ClientFiles(client, memory, inbox, {path_of(*row): row[3].decode() for row in rows})

    def clients(self) -> tuple[ClientFiles, ...]:
        """Return the files of each client that has any."""
        return tuple(self.client(client) for client in np.unique(self.rows["client"]).tolist())

    def files(self) -> dict[str, str]:
        """Return the digest of every file, by its path."""
        return {path: sha256 for files in self.clients() for path, sha256 in files.sha256.items()}


def path_of(client: int, sender: int, round: int, _sha256: bytes) -> str:
    """Return the path of a file of the index."""
    if sender == OWN:
        return memory_path(client, round)
    return inbox_path(client, sender, round)
