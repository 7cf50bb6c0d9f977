"""The atomic checkpoint at the end of each round; a resumed run starts from the newest valid one.

    rounds/0007/
      manifest.json       metrics, rows of clients, digests           kept of every round
      server.safetensors  the server state                            kept of the newest few rounds
      judged.safetensors  tensors that replaced the state's in its evaluation, if there were any; kept as long
      links.json          the versions of memories and inboxes        kept as long

A client's private memory is written once per change, as memory/<thousand>/<client>/<round>.safetensors, and its
pending peer messages as memory/<thousand>/<client>/inbox/<round>-<sender>.safetensors, where <thousand> is the client's
id without its last three digits. links.json names the versions that belong to the round, with their digests. The
manifest has the digests of links.json, of judged.safetensors and of the server state, and one of itself. So damage to
any part of a checkpoint is noticed before the part is used.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.durable import put_in_place, sync_folder
from shoal.core.errors import short_text, shown
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
    try:
        shutil.rmtree(paths.scratch, ignore_errors=True)
        paths.scratch.mkdir(parents=True)
    except OSError as error:
        raise disk_error(paths.scratch, error) from error
    save_server(paths.scratch / SERVER, server)
    change = memory_index.change
    index_json = memory_index.to_json() if change is None else {"since": server.round - 1, "change": change.to_json()}
    write_sealed(paths.scratch / LINKS, index_json)
    return paths


def close_round(run: RunFolder, server: Server, memory_index: MemoryIndex, record: RoundRecord | None) -> Manifest:
    """Finish the checkpoint of a round: sync the memories, then make the checkpoint valid by a rename.

    Args:
        run: the run's folder.
        server: the state in the open checkpoint.
        memory_index: the index in the open checkpoint.
        record: the record of the round; None for round 0.

    Raises:
        StoreError: the disk is full; the checkpoint before stays valid.
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
    """Give a work file its lasting name too; call `sync_files` afterwards."""
    path = run.path / target
    try:
        private_folder(path.parent)
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)  # the file system has no hard links
            path.chmod(PRIVATE)
    except OSError as error:
        raise disk_error(path, error) from error


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until files are on the disk, many at once, since a file system writes its journal once for all of them.

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
    path = RoundPaths(run.path, round).manifest
    try:
        manifest = Manifest.from_json(read_sealed(path))
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} is not the manifest of a round: {type(error).__name__} {short_text(error)}"
        ) from error
    if manifest.round != round:
        raise StoreError(f"{path} is the manifest of round {shown(manifest.round)}")
    return manifest


def has_server(run: RunFolder, round: int) -> bool:
    """Return whether the server state of a round is still kept."""
    return RoundPaths(run.path, round).server.exists()


def load_round(run: RunFolder, round: int) -> Checkpoint:
    """Read a checkpoint, and compare every file of it with its digest.

    Raises:
        StoreError: a part is missing, truncated or changed.
    """
    paths = RoundPaths(run.path, round)
    manifest = load_manifest(run, round)
    server = load_state(run, round, manifest)
    memory_index = load_index(run, round, sha256=manifest.files.get(LINKS))
    digests = memory_index.sha256
    for path in sorted(memory_index.files()):  # also those without a digest: a truncated file cannot be read
        load_tensors(run.path / path, sha256=digests.get(path))
    return Checkpoint(server, memory_index, manifest, load_statistics(paths, manifest))


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
    path = RoundPaths(run.path, round).server
    server = load_server(path)
    same = server.round == round and manifest.finished == server.finished
    if not same or server_digest(server) != manifest.server_sha256:
        raise StoreError(f"{path} is not the state that its manifest describes")
    return server


def load_index(run: RunFolder, round: int, newest: Path | None = None, sha256: str | None = None) -> MemoryIndex:
    """Return the index of the files of memories and inboxes of a checkpoint.

    If its links.json holds only the change of the round, read earlier ones too, back to a complete one.

    Args:
        run: the run's folder.
        round: the round.
        newest: links.json of the round; None: the one in the closed checkpoint.
        sha256: hex digest that this file must have; None: it is not known.

    Raises:
        StoreError: one of the files is missing, incomplete or changed.
    """
    path = newest or RoundPaths(run.path, round).memory_index
    changes = []
    check_digest(path, sha256)
    while True:
        try:
            index_json = read_sealed(path)
            if "since" not in index_json:
                index = MemoryIndex.from_json(index_json)
                break
            changes.append(IndexChange.from_json(index_json["change"]))
            if index_json["since"] != round - 1:
                raise ValueError(f"it follows round {shown(index_json['since'])}, expected {round - 1}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is damaged, and does not name the files of the round: {short_text(error)}"
            ) from error
        round -= 1
        path = RoundPaths(run.path, round).memory_index
    for change in reversed(changes):
        index = index.after(change)
    return index


def load_statistics(paths: RoundPaths, manifest: Manifest) -> Tensors:
    """Return the tensors that replaced those of the state in its evaluation; empty if none did.

    Raises:
        StoreError: the file is missing or changed.
    """
    if JUDGED not in manifest.files:
        return {}
    return load_tensors(paths.judged, sha256=manifest.files[JUDGED])[0]


def newest_valid(run: RunFolder) -> Checkpoint | None:
    """Return the newest valid checkpoint; log an event for each damaged one that is skipped."""
    for round in reversed(rounds_done(run)):
        if not has_server(run, round):
            continue  # pruned
        try:
            return load_round(run, round)
        except (StoreError, KeyError, TypeError) as error:
            message = f"the checkpoint of round {round} is skipped, and the round computed again: {error}"
            run.event("checkpoint_unreadable", round=round, message=message)
    return None


def drop_after(run: RunFolder, round: int) -> None:
    """Remove the checkpoints and memories of rounds after `round`."""
    for done in rounds_done(run):
        if done > round:
            shutil.rmtree(RoundPaths(run.path, done).checkpoint)
    for scratch in run.rounds.glob(".*.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    for path in run.memory.rglob("*.safetensors"):
        if round_of(path) > round:
            path.unlink()


class Pruning:
    """Removes old server states of a run, and the versions of memories that only they name.

    The folder is searched once; later the index of each round names the files that are no longer needed.

    Args:
        run: the run's folder.
        keep: number of server states to keep.
    """

    def __init__(self, run: RunFolder, keep: int) -> None:
        self.run = run
        self.keep = keep
        done = rounds_done(run)
        full = [round for round in done if has_server(run, round)]
        self._linked = deque(round for round in done if RoundPaths(run.path, round).memory_index.exists())
        self._full = deque(full[-keep:])
        for old in full[:-keep]:
            self._forget(old)
        named = [self._files_of(round) for round in self._full]
        self._whole = deque(round for round in self._linked if self._is_whole(round))
        self._dropped = {
            round: tuple(sorted(named[place] - set().union(*named[place + 1 :])))
            for place, round in enumerate(list(self._full)[1:])
        }
        in_use: set[str] = set().union(*named)
        for path in run.memory.rglob("*.safetensors"):
            if str(path.relative_to(run.path)) not in in_use:
                path.unlink(missing_ok=True)
        self._forget_links()

    def closed(self, round: int, memory_index: MemoryIndex) -> None:
        """Remove files that are no longer needed once a round is closed."""
        self._full.append(round)
        self._linked.append(round)
        if memory_index.change is None:
            self._whole.append(round)
        self._dropped[round] = memory_index.dropped
        while len(self._full) > self.keep:
            self._forget(self._full.popleft())
            # Named by the removed state, and by no later one.
            for path in self._dropped.pop(self._full[0], ()):
                (self.run.path / path).unlink(missing_ok=True)
        self._forget_links()

    def _files_of(self, round: int) -> set[str]:
        """Return the memory files that a kept round names; log an event and return none if its index is damaged.

        A damaged older round must not stop the run, which resumes from its newest one.
        """
        try:
            return load_index(self.run, round).files()
        except StoreError as error:
            message = f"the run cannot return to the state of round {round}: {error}"
            self.run.event("checkpoint_unreadable", round=round, message=message)
            return set()

    def _is_whole(self, round: int) -> bool:
        """Return whether the links.json of a round is complete, and not only the change of the round."""
        try:
            return "since" not in read_sealed(RoundPaths(self.run.path, round).memory_index)
        except StoreError:
            return False

    def _forget(self, round: int) -> None:
        """Remove the server state of a round; its manifest stays."""
        paths = RoundPaths(self.run.path, round)
        for part in (paths.server, paths.judged):
            part.unlink(missing_ok=True)

    def _forget_links(self) -> None:
        """Remove each links.json before the complete one from which the oldest kept state is read."""
        while len(self._whole) > 1 and self._whole[1] <= self._full[0]:
            self._whole.popleft()
        if self._whole and self._whole[0] <= self._full[0]:
            while self._linked[0] < self._whole[0]:
                RoundPaths(self.run.path, self._linked.popleft()).memory_index.unlink(missing_ok=True)
