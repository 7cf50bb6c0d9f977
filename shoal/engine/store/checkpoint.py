"""A round ends in one atomic checkpoint, and resuming starts from the newest valid one.

    rounds/0007/
      manifest.json       metrics, client rows, digests: kept for every round
      server.safetensors  the server state          } kept for the newest few rounds
      judged.safetensors  tensors that replaced the state's when it was evaluated, where any did }
      links.json          versions of memory and inbox }

A client's private memory is written once per change, as memory/<thousand>/<client>/<round>.safetensors, and its
pending peer messages as memory/<thousand>/<client>/inbox/<round>-<sender>.safetensors, where <thousand> is the client's
number without its last three digits. links.json says which versions belong to the round, and their digests. The
manifest has the digests of links.json, of judged.safetensors and of the server state, and seals itself: so that a
change of any part of a checkpoint is noticed before it is used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.durable import put_in_place, sync_folder
from shoal.core.errors import brief, shown
from shoal.engine.store.codec import (
    PRIVATE,
    StoreError,
    check_digest,
    disk_error,
    file_digest,
    load_server,
    load_tensors,
    private_folder,
    read_sealed,
    save_server,
    server_digest,
    write_sealed,
)
from shoal.engine.store.manifest import Manifest, RoundRecord
from shoal.engine.store.memory_index import IndexChange, MemoryIndex
from shoal.engine.store.round_paths import JUDGED, LINKS, MANIFEST, SERVER, RoundPaths, round_of
from shoal.engine.store.run_folder import RunFolder, now
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Tensors

SYNC_THREADS = 32
"""Files that are synced at once."""


@dataclass(frozen=True)
class Checkpoint:
    """A valid round.

    Args:
        server: its state.
        memory_index: which files of memory and inbox belong to it.
        manifest: its manifest.
        statistics: tensors that replaced the state's when it was evaluated, by name.
    """

    server: Server
    memory_index: MemoryIndex
    manifest: Manifest
    statistics: Tensors = field(default_factory=dict)

    @property
    def judged(self) -> Server:
        """The state as it was evaluated, to predict with; training goes on from `server`."""
        return self.server.with_model(self.statistics)


def open_round(run: RunFolder, server: Server, memory_index: MemoryIndex) -> RoundPaths:
    """Begin the checkpoint of a round: its folder under a temporary name, with server state and memory index in it.

    Raises:
        StoreError: the disk is full.
    """
    paths = RoundPaths(run.path, server.round)
    try:
        shutil.rmtree(paths.scratch, ignore_errors=True)
        paths.scratch.mkdir(parents=True)
    except OSError as error:
        raise disk_error(paths.scratch, error) from error
    save_server(paths.scratch / SERVER, server)
    change = memory_index.change
    links = memory_index.to_json() if change is None else {"since": server.round - 1, "change": change.to_json()}
    write_sealed(paths.scratch / LINKS, links)
    return paths


def close_round(run: RunFolder, server: Server, memory_index: MemoryIndex, record: RoundRecord | None) -> Manifest:
    """Finish the checkpoint: memories are in place first, the rename makes it valid.

    Args:
        run: the run's folder.
        server: the state with which the checkpoint was begun.
        memory_index: the index with which it was begun.
        record: what the clients of the round did; None for round 0.

    Raises:
        StoreError: the disk is full; the round before stays valid.
    """
    paths = RoundPaths(run.path, server.round)
    files = {name: file_digest(paths.scratch / name) for name in (LINKS, JUDGED) if (paths.scratch / name).exists()}
    manifest = Manifest(server.round, now(), server_digest(server), record, server.finished, files)
    write_sealed(paths.scratch / MANIFEST, manifest.to_json())
    try:
        # Older files were synced with their own round.
        sync_files(sorted({(run.path / path).parent for path in memory_index.new}))
        sync_folder(paths.scratch)
        put_in_place(paths.scratch, paths.checkpoint)
    except OSError as error:
        raise disk_error(paths.scratch, error) from error
    return manifest


def adopt(run: RunFolder, source: Path, target: str) -> None:
    """Give a work file its lasting name (the work file stays until the round is closed); `sync_files` is to follow."""
    path = run.path / target
    try:
        private_folder(path.parent)
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)  # a file system without hard links
            path.chmod(PRIVATE)
    except OSError as error:
        raise disk_error(path, error) from error


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until files are on the disk.

    Several at once: a file system that keeps a journal writes it once for all that wait.

    Raises:
        StoreError: the disk is full, or fails.
    """

    def sync(path: Path) -> None:
        try:
            sync_folder(path)
        except OSError as error:
            raise disk_error(path, error) from error

    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(SYNC_THREADS, len(paths)), thread_name_prefix="sync") as threads:
        list(threads.map(sync, paths))


def rounds_done(run: RunFolder) -> list[int]:
    """Return the rounds with a manifest, ascending."""
    return sorted(
        int(p.name) for p in run.rounds.iterdir() if re.fullmatch(r"\d{4,}", p.name) and (p / MANIFEST).is_file()
    )


def manifests(run: RunFolder, last: int, lost: Callable[[int, str], None] | None = None) -> Iterator[Manifest]:
    """Yield the manifests up to a round, ascending: the source of the tables.

    One that is missing or cannot be trusted is left out: what it recorded is lost, and the run is not.

    Args:
        run: the run's folder.
        last: the newest round that is wanted.
        lost: called with the round of each that is left out, and with why.
    """
    for round in range(last + 1):
        try:
            yield load_manifest(run, round)
        except StoreError as error:
            if lost is not None:
                lost(round, str(error))


def load_manifest(run: RunFolder, round: int) -> Manifest:
    """Read the manifest of a round.

    Raises:
        StoreError: it is missing, incomplete, changed, or of another round.
    """
    path = RoundPaths(run.path, round).manifest
    try:
        manifest = Manifest.from_json(read_sealed(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is not the manifest of a round: {type(error).__name__} {brief(error)}") from error
    if manifest.round != round:
        raise StoreError(f"{path} is the manifest of round {shown(manifest.round)}")
    return manifest


def has_server(run: RunFolder, round: int) -> bool:
    """Return whether the server state of a finished round is still kept."""
    return RoundPaths(run.path, round).server.exists()


def load_round(run: RunFolder, round: int) -> Checkpoint:
    """Read a checkpoint back, and compare every file that belongs to it with its digest.

    Raises:
        StoreError: a part is missing, truncated or changed.
    """
    paths = RoundPaths(run.path, round)
    manifest = load_manifest(run, round)
    server = load_state(run, round, manifest)
    memory_index = load_index(run, round, sha256=manifest.files.get(LINKS))
    digests = memory_index.sha256
    for path in sorted(memory_index.files()):
        load_tensors(run.path / path, sha256=digests.get(path))
    return Checkpoint(server, memory_index, manifest, load_statistics(paths, manifest))


def load_state(run: RunFolder, round: int, manifest: Manifest | None = None) -> Server:
    """Read the server state of a closed round.

    Args:
        run: the run's folder.
        round: the round.
        manifest: of the round; None: it is read.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    manifest = manifest or load_manifest(run, round)
    path = RoundPaths(run.path, round).server
    server = load_server(path)
    same = server.round == round and manifest.finished in (None, server.finished)
    if not same or server_digest(server) != manifest.server_sha256:
        raise StoreError(f"{path} is not the state its manifest describes")
    return server


def load_index(run: RunFolder, round: int, newest: Path | None = None, sha256: str | None = None) -> MemoryIndex:
    """Return which files of memory and inbox belong to a checkpoint.

    Where its links.json holds the change of the round alone, those of rounds before are read, back to a whole one.

    Args:
        run: the run's folder.
        round: the round.
        newest: its links.json, where it is not in a closed checkpoint.
        sha256: hex digest that this file must have, where one is known.

    Raises:
        StoreError: one of the files is missing, incomplete or changed.
    """
    path = newest or RoundPaths(run.path, round).links
    changes = []
    check_digest(path, sha256)
    while True:
        try:
            links = read_sealed(path)
            if "since" not in links:
                index = MemoryIndex.from_json(links)
                break
            changes.append(IndexChange.from_json(links["change"]))
            if links["since"] != round - 1:
                raise ValueError(f"it follows round {shown(links['since'])}, expected {round - 1}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{path} does not say which files belong to the round: {brief(error)}") from error
        round -= 1
        path = RoundPaths(run.path, round).links
    for change in reversed(changes):
        index = index.after(change)
    return index


def load_statistics(paths: RoundPaths, manifest: Manifest) -> Tensors:
    """Return the tensors that replaced the state's when it was evaluated; empty where none did.

    Raises:
        StoreError: the file is missing or changed.
    """
    if JUDGED not in manifest.files:
        return {}
    return load_tensors(paths.judged, sha256=manifest.files[JUDGED])[0]


def newest_valid(run: RunFolder) -> Checkpoint | None:
    """Return the newest round that can be read whole; report a broken one in the event log and pass over it."""
    for round in reversed(rounds_done(run)):
        if not has_server(run, round):
            continue  # pruned
        try:
            return load_round(run, round)
        except (StoreError, KeyError, TypeError) as error:
            run.event("checkpoint_unreadable", round=round, message=f"round {round} is passed over: {error}")
    return None


def drop_after(run: RunFolder, round: int) -> None:
    """Remove what belongs to rounds after `round`: broken checkpoints and their memories."""
    for done in rounds_done(run):
        if done > round:
            shutil.rmtree(RoundPaths(run.path, done).checkpoint)
    for scratch in run.rounds.glob(".*.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    for path in run.memory.rglob("*.safetensors"):
        if round_of(path) > round:
            path.unlink()


class Pruning:
    """Keeps the newest server states of a run, and only the memory versions that they name.

    The folder is looked through once; from then on each round says itself which files it no longer needs.

    Args:
        run: the run's folder.
        keep: how many server states are kept.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self.run = run
        self.keep = keep
        done = rounds_done(run)
        full = [round for round in done if has_server(run, round)]
        self._linked = deque(round for round in done if RoundPaths(run.path, round).links.exists())
        self._full = deque(full[-keep:])
        for old in full[:-keep]:
            self._forget(old)
        named = [self._files_of(round) for round in self._full]
        self._whole = deque(round for round in self._linked if self._is_whole(round))
        self._dropped = {
            round: tuple(sorted(named[place] - set().union(*named[place + 1 :])))
            for place, round in enumerate(list(self._full)[1:])
        }
        every: set[str] = set().union(*named)
        for path in run.memory.rglob("*.safetensors"):
            if str(path.relative_to(run.path)) not in every:
                path.unlink(missing_ok=True)
        self._forget_links()

    def closed(self, round: int, memory_index: MemoryIndex) -> None:
        """Remove what is not kept any more after a round has been closed."""
        self._full.append(round)
        self._linked.append(round)
        if memory_index.change is None:
            self._whole.append(round)
        self._dropped[round] = memory_index.dropped
        while len(self._full) > self.keep:
            self._forget(self._full.popleft())
            # Named by the state that went, and by none after it.
            for path in self._dropped.pop(self._full[0], ()):
                (self.run.path / path).unlink(missing_ok=True)
        self._forget_links()

    def _files_of(self, round: int) -> set[str]:
        """Return the memory files that a kept round names; none where its index is damaged, which an event says.

        The run resumes from its newest round, which is whole: a damaged older one must not stop it.
        """
        try:
            return load_index(self.run, round).files()
        except StoreError as error:
            message = f"the state of round {round} cannot be gone back to: {error}"
            self.run.event("checkpoint_unreadable", round=round, message=message)
            return set()

    def _is_whole(self, round: int) -> bool:
        """Return whether the index of a round stands alone, and does not change that of the round before."""
        try:
            return "since" not in read_sealed(RoundPaths(self.run.path, round).links)
        except StoreError:
            return False

    def _forget(self, round: int) -> None:
        """Remove the server state of a round; its manifest stays."""
        paths = RoundPaths(self.run.path, round)
        for part in (paths.server, paths.judged):
            part.unlink(missing_ok=True)

    def _forget_links(self) -> None:
        """Remove the indices from before the whole one that the oldest state kept goes back to."""
        while len(self._whole) > 1 and self._whole[1] <= self._full[0]:
            self._whole.popleft()
        if self._whole and self._whole[0] <= self._full[0]:
            while self._linked[0] < self._whole[0]:
                RoundPaths(self.run.path, self._linked.popleft()).links.unlink(missing_ok=True)
