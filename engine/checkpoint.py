"""A round ends in one atomic checkpoint, and resuming starts from the newest valid one.

    rounds/0007/
      manifest.json       metrics, client rows, digests: kept for every round
      server.safetensors  the server state          } kept for the newest few rounds
      judged.safetensors  what stood in place of the state's tensors when it was judged, where anything did }
      links.json          versions of memory and inbox }

A client's private memory is written once per change, as memory/<client>/<round>.safetensors, and its pending peer
messages as memory/<client>/inbox/<round>-<sender>.safetensors; links.json says which versions belong to the round.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine.codec import (
    StoreError,
    disk_error,
    load_server,
    load_tensors,
    read_json,
    save_server,
    server_digest,
    sync_folder,
    write_json,
)
from engine.manifest import Manifest, RoundRecord
from engine.memory_index import MemoryIndex
from engine.round_paths import LINKS, MANIFEST, SERVER, RoundPaths, round_of
from engine.run_folder import RunFolder, now
from methods.base import Server, Tensors


@dataclass(frozen=True)
class Checkpoint:
    """A valid round read back."""

    server: Server
    memory_index: MemoryIndex
    manifest: Manifest
    statistics: Tensors = field(default_factory=dict)

    @property
    def judged(self) -> Server:
        """The state as it was judged, for whoever predicts with it; training goes on from `server`."""
        return self.server.replaced(self.statistics)


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
    write_json(paths.scratch / LINKS, memory_index.plain())
    return paths


def close_round(
    run: RunFolder, server: Server, memory_index: MemoryIndex, record: RoundRecord | None, keep: int
) -> Manifest:
    """Finish the checkpoint: memories are in place first, the rename makes it valid, old server states go last.

    Args:
        run: the run's folder.
        server: the state with which the checkpoint was begun.
        memory_index: likewise.
        record: what the clients of the round did; None for round 0.
        keep: how many server states are kept.

    Raises:
        StoreError: the disk is full; the round before stays valid.
    """
    paths = RoundPaths(run.path, server.round)
    manifest = Manifest(server.round, now(), server_digest(server), record)
    write_json(paths.scratch / MANIFEST, manifest.plain())
    try:
        # Older files were synced with their own round: only this round's can be new.
        for folder in {(run.path / path).parent for path in memory_index.files() if round_of(path) == server.round}:
            sync_folder(folder)
        sync_folder(paths.scratch)
        if paths.checkpoint.exists():
            shutil.rmtree(paths.checkpoint)
        paths.scratch.rename(paths.checkpoint)
        sync_folder(run.rounds)
    except OSError as error:
        raise disk_error(paths.scratch, error) from error
    prune(run, keep)
    return manifest


def adopt(run: RunFolder, source: Path, target: str) -> None:
    """Give a work file its lasting name (the work file stays until the round is closed), and sync it."""
    path = run.path / target
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)  # a file system without hard links
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise disk_error(path, error) from error


def rounds_done(run: RunFolder) -> list[int]:
    """Rounds with a manifest, ascending."""
    return sorted(
        int(p.name) for p in run.rounds.iterdir() if re.fullmatch(r"\d{4,}", p.name) and (p / MANIFEST).is_file()
    )


def manifests(run: RunFolder, last: int) -> Iterator[Manifest]:
    """The manifests up to a round, ascending: the source of both tables."""
    return (load_manifest(run, r) for r in rounds_done(run) if r <= last)


def load_manifest(run: RunFolder, round: int) -> Manifest:
    """The manifest of a round.

    Raises:
        StoreError: it is missing or incomplete.
    """
    path = RoundPaths(run.path, round).manifest
    try:
        return Manifest.of(read_json(path))
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} is not the manifest of a round: {type(error).__name__} {error}") from error


def has_server(run: RunFolder, round: int) -> bool:
    """Whether the server state of a finished round is still kept."""
    return RoundPaths(run.path, round).server.exists()


def load_round(run: RunFolder, round: int) -> Checkpoint:
    """Read a checkpoint back, every byte of the server state checked.

    Raises:
        StoreError: a part is missing, truncated or changed.
    """
    paths = RoundPaths(run.path, round)
    manifest = load_manifest(run, round)
    server = load_server(paths.server)
    if server_digest(server) != manifest.server_sha256:
        raise StoreError(f"{paths.server} is not the state its manifest describes")
    memory_index = MemoryIndex.of(read_json(paths.links))
    for path in memory_index.files():
        load_tensors(run.path / path)
    statistics = load_tensors(paths.judged)[0] if paths.judged.exists() else {}
    return Checkpoint(server, memory_index, manifest, statistics)


def newest_valid(run: RunFolder) -> Checkpoint | None:
    """The newest round that can be read whole; a broken one is reported in the event log and passed over."""
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


def prune(run: RunFolder, keep: int) -> None:
    """Keep the newest `keep` server states, and only the memory versions that they name."""
    full = [r for r in rounds_done(run) if has_server(run, r)]
    for old in full[:-keep]:
        paths = RoundPaths(run.path, old)
        for part in (paths.server, paths.judged, paths.links):
            part.unlink(missing_ok=True)
    named: set[str] = set()
    for kept in full[-keep:]:
        named |= MemoryIndex.of(read_json(RoundPaths(run.path, kept).links)).files()
    for path in run.memory.rglob("*.safetensors"):
        if str(path.relative_to(run.path)) not in named:
            path.unlink(missing_ok=True)
