"""A round ends in one atomic checkpoint, and resuming starts from the newest valid one.

    rounds/0007/
      manifest.json       metrics, client rows, digests: kept for every round
      server.safetensors  the server state          } kept for the newest few rounds
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
from typing import Any

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
from engine.run_folder import RunFolder
from methods.base import Server

MANIFEST, SERVER, LINKS = "manifest.json", "server.safetensors", "links.json"


@dataclass
class MemoryIndex:
    """Which files hold the clients' memories and pending peer messages; paths relative to the run folder."""

    memory: dict[int, str] = field(default_factory=dict)
    inbox: dict[int, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"memory": self.memory, "inbox": self.inbox}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> MemoryIndex:
        """From JSON, whose keys are text."""
        return cls(
            {int(k): v for k, v in plain["memory"].items()}, {int(k): list(v) for k, v in plain["inbox"].items()}
        )

    def files(self) -> set[str]:
        """Every file named."""
        return {*self.memory.values(), *(path for paths in self.inbox.values() for path in paths)}


@dataclass(frozen=True)
class Checkpoint:
    """A valid round read back."""

    server: Server
    memory_index: MemoryIndex
    manifest: dict[str, Any]


def round_folder(run: RunFolder, round: int) -> Path:
    """Where the checkpoint of a round is."""
    return run.rounds / f"{round:04d}"


def open_round(run: RunFolder, server: Server) -> Path:
    """Begin the checkpoint of a round: its folder under a temporary name, with the server state in it."""
    scratch = run.rounds / f".{server.round:04d}.tmp"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    except OSError as error:
        raise disk_error(scratch, error) from error
    save_server(scratch / SERVER, server)
    return scratch


def close_round(
    run: RunFolder, scratch: Path, server: Server, memory_index: MemoryIndex, manifest: dict[str, Any], keep: int
) -> None:
    """Finish the checkpoint: memories are in place first, the rename makes it valid, old server states go last.

    Raises:
        StoreError: the disk is full; the round before stays valid.
    """
    write_json(scratch / LINKS, memory_index.plain())
    write_json(scratch / MANIFEST, {**manifest, "round": server.round, "server_sha256": server_digest(server)})
    try:
        # Older files were synced with their own round: only this round's can be new.
        for folder in {(run.path / path).parent for path in memory_index.files() if round_of(path) == server.round}:
            sync_folder(folder)
        sync_folder(scratch)
        final = round_folder(run, server.round)
        if final.exists():
            shutil.rmtree(final)
        scratch.rename(final)
        sync_folder(run.rounds)
    except OSError as error:
        raise disk_error(scratch, error) from error
    prune(run, keep)


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


def round_of(path: str | Path) -> int:
    """The round that a file under memory/ was written in, by its name."""
    return int(Path(path).stem.split("-")[0])


def rounds_done(run: RunFolder) -> list[int]:
    """Rounds with a manifest, ascending."""
    return sorted(
        int(p.name) for p in run.rounds.iterdir() if re.fullmatch(r"\d{4,}", p.name) and (p / MANIFEST).is_file()
    )


def manifests(run: RunFolder, last: int) -> Iterator[dict[str, Any]]:
    """The manifests up to a round, ascending: the source of both tables."""
    return (read_json(round_folder(run, r) / MANIFEST) for r in rounds_done(run) if r <= last)


def load_round(run: RunFolder, round: int) -> Checkpoint:
    """Read a checkpoint back, every byte of the server state checked.

    Raises:
        StoreError: a part is missing, truncated or changed.
    """
    folder = round_folder(run, round)
    manifest = read_json(folder / MANIFEST)
    server = load_server(folder / SERVER)
    if server_digest(server) != manifest["server_sha256"]:
        raise StoreError(f"{folder / SERVER} is not the state its manifest describes")
    memory_index = MemoryIndex.of(read_json(folder / LINKS))
    for path in memory_index.files():
        load_tensors(run.path / path)
    return Checkpoint(server, memory_index, manifest)


def newest_valid(run: RunFolder) -> Checkpoint | None:
    """The newest round that can be read whole; a broken one is reported in the event log and passed over."""
    for round in reversed(rounds_done(run)):
        if not (round_folder(run, round) / SERVER).exists():
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
            shutil.rmtree(round_folder(run, done))
    for scratch in run.rounds.glob(".*.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    for path in run.memory.rglob("*.safetensors"):
        if round_of(path) > round:
            path.unlink()


def prune(run: RunFolder, keep: int) -> None:
    """Keep the newest `keep` server states, and only the memory versions that they name."""
    full = [r for r in rounds_done(run) if (round_folder(run, r) / SERVER).exists()]
    for old in full[:-keep]:
        (round_folder(run, old) / SERVER).unlink(missing_ok=True)
        (round_folder(run, old) / LINKS).unlink(missing_ok=True)
    named: set[str] = set()
    for kept in full[-keep:]:
        named |= MemoryIndex.of(read_json(round_folder(run, kept) / LINKS)).files()
    for path in run.memory.rglob("*.safetensors"):
        if str(path.relative_to(run.path)) not in named:
            path.unlink(missing_ok=True)
