"""A client's finished work in a round, as its done-file describes it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from shoal.core.digests import file_digest
from shoal.core.records import BadRecord, record_from_json
from shoal.engine.store.codec import StoreError, load_message, read_sealed
from shoal.engine.store.manifest import ClientRow
from shoal.engine.store.round_paths import RoundPaths, memory_file, peer_file, update_file
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.contract.base import Update


@dataclass(frozen=True)
class FinishedWork(ClientRow):
    """A client's work in a round (done-3.json); its tensors are in files beside the done-file.

    Args:
        peers: size in bytes of the message to each other client.
        sha256: hex digest of each of its files in the round's work folder, by name.
    """

    peers: Mapping[int, int]
    sha256: Mapping[str, str]

    @property
    def update(self) -> str:
        """File of the message to the server."""
        return update_file(self.client)

    @property
    def memory(self) -> str | None:
        """File of the new private memory; None: it did not change."""
        name = memory_file(self.client)
        return name if name in self.sha256 else None

    def peer(self, client: int) -> str:
        """Return the file of the message to another client."""
        return peer_file(self.client, client)

    @property
    def names(self) -> set[str]:
        """All its files."""
        memory = set() if self.memory is None else {self.memory}
        return {self.update, *memory, *map(self.peer, self.peers)}


def finished_work(run: RunFolder, round: int, client: int) -> FinishedWork | None:
    """Return a client's finished work in an interrupted round; None if one of its files is missing or damaged."""
    paths = RoundPaths(run.path, round)
    try:
        done = record_from_json(FinishedWork, read_sealed(paths.done(client)))
        named = done.client == client and done.sha256.keys() == done.names
        whole = named and all(file_digest(paths.work / name) == sha256 for name, sha256 in done.sha256.items())
    except (StoreError, OSError, BadRecord):
        return None
    return done if whole else None


def forget_work(run: RunFolder, round: int, done: FinishedWork) -> None:
    """Remove a client's answer in a round: the done-file first, since without it the other files do not count."""
    paths = RoundPaths(run.path, round)
    for path in (paths.done(done.client), *(paths.work / name for name in done.names)):
        path.unlink(missing_ok=True)


def load_update(run: RunFolder, round: int, done: FinishedWork) -> Update:
    """Read a finished client's update for `aggregate`, without its memory and its messages to peers.

    Raises:
        StoreError: the file is missing, or has another digest.
    """
    message = load_message(RoundPaths(run.path, round).work / done.update, sha256=done.sha256[done.update])
    return Update(message, metrics=dict(done.metrics), client=done.client)


def drop_refused(run: RunFolder, round: int, done: list[FinishedWork], refused: Container[int]) -> list[FinishedWork]:
    """Return the work of the clients whose answers are not refused, and remove the files of the others."""
    for each in done:
        if each.client in refused:
            forget_work(run, round, each)
    return [each for each in done if each.client not in refused]
