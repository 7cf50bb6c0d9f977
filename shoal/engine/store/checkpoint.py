"""The atomic checkpoint at the end of each round; a resumed run starts from the newest valid one.

    rounds/0007/
      manifest.json         metrics, rows of clients, digests           kept of every round
      server.safetensors    the server state                            kept of the newest few rounds
      memories.safetensors  the versions of memories and inboxes        kept as long
      judged.safetensors    tensors that replaced the state's in its evaluation, if there were any; kept as long

A client's private memory is written once per change, as memory/<thousand>/<client>/<round>.safetensors, and its
pending peer messages as memory/<thousand>/<client>/inbox/<round>-<sender>.safetensors, where <thousand> is the client's
id without its last three digits. memories.safetensors names the versions that belong to the round, with their digests.
The manifest has the digests of the other files, and one of itself. So damage to any part of a checkpoint is noticed
before the part is used.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.digests import file_digest
from shoal.core.durable import private_folder, put_in_place, sync_folder
from shoal.core.records import record_to_json
from shoal.engine.store.codec import (
    PRIVATE,
    StoreError,
    load_server,
    load_tensors,
    save_server,
    save_tensors,
    write_sealed,
    writing,
)
from shoal.engine.store.manifest import Manifest, RoundRecord, read_manifest
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import JUDGED, MANIFEST, MEMORIES, SERVER, RoundPaths
from shoal.engine.store.run_folder import RunFolder, now
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Tensors

SYNC_THREADS = 32
"""Most files that are synced at once."""


@dataclass(frozen=True)
class Checkpoint:
    """A valid checkpoint.

    Args:
        server: the server state.
        memory_index: the files of memories and inboxes.
        manifest: the manifest.
        statistics: tensors that replaced those of the state in its evaluation, by name.
    """

    server: Server
    memory_index: MemoryIndex
    manifest: Manifest
    statistics: Tensors = field(default_factory=dict)

    @property
    def judged(self) -> Server:
        """The state as it was evaluated, for predictions; training continues from `server`."""
        return self.server.with_model(self.statistics)


def open_round(run: RunFolder, server: Server, memory_index: MemoryIndex) -> RoundPaths:
    """Begin the checkpoint of a round: write server state and memory index to its scratch folder.

    Raises:
        StoreError: the disk is full.
    """
    paths = RoundPaths(run.path, server.round)
    with writing(paths.scratch):
        shutil.rmtree(paths.scratch, ignore_errors=True)
        paths.scratch.mkdir(parents=True)
    save_server(paths.scratch / SERVER, server)
    save_tensors(paths.scratch / MEMORIES, memory_index.tensors())
    return paths


def close_round(run: RunFolder, round: int, record: RoundRecord | None) -> Manifest:
    """Finish the checkpoint of a round: make it valid by a rename.

    Args:
        run: the run's folder.
        round: the round, whose checkpoint is open.
        record: the record of the round; None for round 0.

    Raises:
        StoreError: the disk is full; the checkpoint before stays valid.
    """
    paths = RoundPaths(run.path, round)
    files = {path.name: file_digest(path) for path in sorted(paths.scratch.iterdir())}
    manifest = Manifest(round, now(), files, record)
    write_sealed(paths.scratch / MANIFEST, record_to_json(manifest))
    with writing(paths.scratch):
        sync_folder(paths.scratch)
        put_in_place(paths.scratch, paths.checkpoint)
    return manifest


def adopt(run: RunFolder, source: Path, target: str) -> None:
    """Give a work file its lasting name too; call `sync_files` afterwards."""
    path = run.path / target
    with writing(path):
        private_folder(path.parent)
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)  # the file system has no hard links
            path.chmod(PRIVATE)


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until files and folders are on the disk, many at once, since a file system writes its journal for all.

    Raises:
        StoreError: the disk is full, or fails.
    """

    def sync(path: Path) -> None:
        with writing(path):
            sync_folder(path)

    if paths:
        with ThreadPoolExecutor(min(SYNC_THREADS, len(paths)), thread_name_prefix="sync") as threads:
            list(threads.map(sync, paths))


def rounds_done(run: RunFolder) -> list[int]:
    """Return the rounds with a manifest, ascending."""
    return [round for round in run.round_folders() if RoundPaths(run.path, round).manifest.is_file()]


def manifests(run: RunFolder, last: int, lost: Callable[[int, str], None] | None = None) -> Iterator[Manifest]:
    """Yield the manifests up to a round, ascending, without those that are missing or damaged.

    Args:
        run: the run's folder.
        last: the newest round to include.
        lost: called with the round of each missing or damaged manifest, and with the reason.
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
    return read_manifest(RoundPaths(run.path, round).manifest, round)


def has_server(run: RunFolder, round: int) -> bool:
    """Return whether the server state of a round is still kept."""
    return RoundPaths(run.path, round).server.exists()


def load_round(run: RunFolder, round: int) -> Checkpoint:
    """Read a checkpoint, and compare every file of it with its digest.

    Raises:
        StoreError: a part is missing, truncated or changed.
    """
    manifest = load_manifest(run, round)
    server = load_state(run, round, manifest)
    memory_index = load_index(run, round, manifest)
    for path, sha256 in sorted(memory_index.files().items()):
        load_tensors(run.path / path, sha256=sha256)
    statistics: Tensors = {}
    if JUDGED in manifest.files:
        statistics, _ = load_tensors(RoundPaths(run.path, round).judged, sha256=manifest.files[JUDGED])
    return Checkpoint(server, memory_index, manifest, statistics)


def load_state(run: RunFolder, round: int, manifest: Manifest | None = None) -> Server:
    """Read the server state of a closed round.

    Args:
        run: the run's folder.
        round: the round.
        manifest: the manifest of the round; None: it is read too.

    Raises:
        StoreError: it is missing, truncated or changed.
    """
    manifest = manifest or load_manifest(run, round)
    return load_server(RoundPaths(run.path, round).server, sha256=manifest.files[SERVER])


def load_index(run: RunFolder, round: int, manifest: Manifest | None = None) -> MemoryIndex:
    """Read the index of memories and inboxes of a closed round; arguments and errors as of `load_state`."""
    manifest = manifest or load_manifest(run, round)
    tensors, _ = load_tensors(RoundPaths(run.path, round).memories, sha256=manifest.files[MEMORIES])
    return MemoryIndex.from_tensors(tensors)


def newest_valid(run: RunFolder) -> Checkpoint | None:
    """Return the newest valid checkpoint; log an event for each damaged one that is skipped."""
    for round in reversed(rounds_done(run)):
        if not has_server(run, round):
            continue  # pruned
        try:
            return load_round(run, round)
        except StoreError as error:
            message = f"the checkpoint of round {round} is skipped, and the round computed again: {error}"
            run.event("checkpoint_unreadable", round=round, message=message)
    return None


def drop_after(run: RunFolder, round: int) -> None:
    """Remove the checkpoints of rounds after `round`, and answers to states that follow from them.

    `Pruning` removes the memories that only they name.
    """
    for folders, last in ((run.rounds, round), (run.work, round + 1)):
        for folder in folders.glob("*"):
            if not folder.name.isdecimal() or int(folder.name) > last:
                shutil.rmtree(folder, ignore_errors=True)


class Pruning:
    """Removes old server states of a run, and the versions of memories that only they name.

    The folder is searched once, at the beginning.

    Args:
        run: the run's folder.
        keep: number of server states to keep.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self._run = run
        self._keep = keep
        self._kept: deque[tuple[int, Iterable[str]]] = deque()
        """The rounds whose state is kept, and the files that each of them has replaced."""
        before: set[str] = set()
        in_use: set[str] = set()
        full = [round for round in rounds_done(run) if has_server(run, round)]
        for old in full[:-keep]:
            self._drop_state(old)
        for round in full[-keep:]:
            try:
                index = load_index(run, round)
            except StoreError as error:  # the run resumes from its newest round, and does without this one
                message = f"the run cannot return to the state of round {round}: {error}"
                run.event("checkpoint_unreadable", round=round, message=message)
                self._drop_state(round)
                continue
            files = set(index.files())
            self._kept.append((round, before - files))
            in_use |= files
            before = files
        for path in run.memory.rglob("*.safetensors"):
            if str(path.relative_to(run.path)) not in in_use:
                path.unlink(missing_ok=True)

    def closed(self, round: int, replaced: Iterable[str]) -> None:
        """Remove files that are no longer needed once a round is closed, which replaced some of the round before."""
        self._kept.append((round, replaced))
        while len(self._kept) > self._keep:
            self._drop_state(self._kept.popleft()[0])
            for path in self._kept[0][1]:
                (self._run.path / path).unlink(missing_ok=True)

    def _drop_state(self, round: int) -> None:
        """Remove the files of a round; its manifest stays."""
        paths = RoundPaths(self._run.path, round)
        for path in (paths.server, paths.memories, paths.judged):
            path.unlink(missing_ok=True)
