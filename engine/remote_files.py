"""Files for workers that share no file system with this machine, by way of any fsspec URL that all of them reach.

Before a request is sent, what it reads is put there: settings, data and partition once, then each server state, memory
and message to a peer that is new. The worker takes what it lacks into a cache of its own, works as it would on a shared
disk, and puts its clients' files back. They are fetched, and compared with their digests, before the engine hears of
them: the run's folder stays the one record, and the store behind the URL (setting `workers.depot`) holds copies only.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import fsspec

from engine.checkpoint import SERVER
from engine.codec import StoreError, file_digest, read_json, write_json
from engine.run_folder import RunFolder
from engine.settings import SettingsError

CACHE_VARIABLE = "SHOAL_CACHE"
COMPLETE = "complete"
"""The file that is put last into a folder of data: without it the others may be missing."""
UNUSED_DAYS = 7
"""After so long a worker forgets a run, data or a partition that nobody asked it for."""


class Calls(Protocol):
    """Worker slots, as in `engine.pools`."""

    count: int

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a free slot do a request."""
        ...


class RemoteFiles:
    """Files under an fsspec URL, by relative path.

    Args:
        url: such as s3://bucket/shoal or file:///mnt/shared/shoal.

    Raises:
        SettingsError: no such protocol, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            self.fs, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"workers.depot: {url!r} cannot be used: {error}") from None
        self.url, self.root = url, root.rstrip("/")

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # every store has exceptions of its own
            raise StoreError(f"the depot {self.url} failed at {what}: {type(error).__name__}: {error}") from error

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        with self._named(path):
            return bool(self.fs.exists(f"{self.root}/{path}"))

    def put(self, source: Path, path: str) -> None:
        """Copy a file there."""
        with self._named(path):
            self.fs.makedirs(f"{self.root}/{path}".rpartition("/")[0], exist_ok=True)
            self.fs.put_file(str(source), f"{self.root}/{path}")

    def get(self, path: str, target: Path) -> None:
        """Copy a file from there; whoever reads `target` sees all of it or nothing."""
        scratch = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        with self._named(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.fs.get_file(f"{self.root}/{path}", str(scratch))
                scratch.replace(target)
            finally:
                scratch.unlink(missing_ok=True)

    def put_folder(self, source: Path, path: str) -> None:
        """Copy the files of a folder there, unless they are all there."""
        if self.has(f"{path}/{COMPLETE}"):
            return
        names = sorted(p.name for p in source.iterdir() if p.is_file())
        for name in names:
            self.put(source / name, f"{path}/{name}")
        with self._named(path):
            self.fs.pipe_file(f"{self.root}/{path}/{COMPLETE}", "\n".join(names).encode())

    def get_folder(self, path: str, target: Path) -> None:
        """Copy such a folder from there, unless it is here."""
        if target.is_dir():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        try:
            with self._named(path):
                names = self.fs.cat_file(f"{self.root}/{path}/{COMPLETE}").decode().splitlines()
            for name in names:
                self.get(f"{path}/{name}", scratch / name)
            # Another process of this host may have been faster.
            with contextlib.suppress(OSError):
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def drop(self, path: str) -> None:
        """Remove a file or folder; a copy that stays behind does no harm."""
        with contextlib.suppress(Exception):
            self.fs.rm(f"{self.root}/{path}", recursive=True)


def older(path: str, other: str) -> bool:
    """Whether `other` is an earlier version of `path`: of the server state, or of a client's memory.

    Messages have no versions: a client that sits out some rounds reads those of all of them at once.
    """
    versions = [re.fullmatch(r"(rounds/|memory/\d+/)(\d+)\b.*", p) for p in (path, other)]
    mine, its = versions
    return bool(mine and its and mine[1] == its[1] and int(its[2]) < int(mine[2]))


# --- this machine -----------------------------------------------------------------------------------------------------


class RemoteFilesPool:
    """Worker slots that get their files from a depot.

    Args:
        pool: the slots.
        url: of the depot.
    """

    def __init__(self, pool: Calls, url: str) -> None:
        self.count = pool.count
        self._pool, self._remote = pool, RemoteFiles(url)
        self._lock = threading.Lock()
        self._sent: dict[str, set[str]] = {}
        """By key of a run: which of its files are in the depot."""
        self._keys: dict[Path, str] = {}
        self._calls = itertools.count()

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """As of `engine.pools.Pool`.

        Raises:
            StoreError: the depot cannot be written or read.
        """
        run = RunFolder(Path(request["run"]))
        needed = wanted(run, request)
        with self._lock:
            key = self._keys.get(run.path) or self._open(run)
            for path, source in needed.items():
                self._send(key, source, path)
            # Two copies of a cohort may be at work: each answers in a folder of its own.
            back = f"runs/{key}/back/{next(self._calls)}"
        lineage = run.lineage()
        parcel = {
            "url": self._remote.url,
            "run": key,
            "files": sorted(needed),
            "back": back,
            **{what: lineage[what]["digest"] for what in ("data", "partition")},
        }
        answer = self._pool.call({**request, "depot": parcel})
        for client, done in answer.get("clients", {}).items():
            if "error" not in done:
                answer["clients"][client] = self._fetch(run, back, request["round"], done)
        self._remote.drop(back)
        return answer

    def close(self) -> None:
        """Remove the copies of runs; data and partitions stay for other runs."""
        for key in self._sent:
            self._remote.drop(f"runs/{key}")

    def _open(self, run: RunFolder) -> str:
        """Put there what a run needs once."""
        lineage = run.lineage()
        for what in ("data", "partition"):
            self._remote.put_folder(Path(lineage[what]["folder"]), f"{what}/{lineage[what]['digest']}")
        key = f"{run.name}-{hashlib.sha256(str(run.path).encode()).hexdigest()[:8]}"
        self._sent[key] = set()
        for name in ("settings.yaml", "lineage.json"):
            self._send(key, run.path / name, name)
        self._keys[run.path] = key
        return key

    def _send(self, key: str, source: Path, path: str) -> None:
        sent = self._sent[key]
        if path in sent:
            return
        self._remote.put(source, f"runs/{key}/{path}")
        for other in [p for p in sent if older(path, p)]:
            sent.discard(other)
            self._remote.drop(f"runs/{key}/{other}")
        sent.add(path)

    def _fetch(self, run: RunFolder, back: str, round: int, done: dict[str, Any]) -> dict[str, Any]:
        """A client's files, into the run's folder; the done-file last, as a worker of this machine would write it."""
        folder = run.work / f"{round:04d}"
        for name, digest in done["sha256"].items():
            self._remote.get(f"{back}/{name}", folder / name)
            if file_digest(folder / name) != digest:
                return {"error": f"{name} of client {done['client']} came back from the depot with other bytes"}
        write_json(folder / f"done-{done['client']}.json", done, sync=False)
        return done


def wanted(run: RunFolder, request: dict[str, Any]) -> dict[str, Path]:
    """The files that a request reads: path in the run's folder, and where it is now."""
    if request["do"] == "train":
        state = f"rounds/{request['round'] - 1:04d}/{SERVER}"
        found = {state: run.path / state}
        paths = [p for entry in request["clients"] for p in [entry["memory"], *entry["inbox"]] if p]
    else:
        # The state's checkpoint is not closed yet; the next round asks for it under its lasting name.
        found = {f"rounds/{request['round']:04d}/{SERVER}": Path(request["server"])}
        links = request["links"]
        paths = [*links["memory"].values(), *(p for messages in links["inbox"].values() for p in messages)]
    return found | {path: run.path / path for path in paths}


# --- the workers' hosts -----------------------------------------------------------------------------------------------


def cache() -> Path:
    """Where a worker keeps what it took from a depot: SHOAL_CACHE, or a folder of the user's among temporary files.

    While no run is at work it may be deleted: what is missing is taken again. Of itself it loses what was not used for
    `UNUSED_DAYS`, when a run comes that is new here.
    """
    value = os.environ.get(CACHE_VARIABLE)
    return Path(value) if value else Path(tempfile.gettempdir()) / f"shoal-cache-{getpass.getuser()}"


_opening = threading.Lock()
"""A worker may have several threads, and files are written under a scratch name of the process."""


def with_remote_files(request: dict[str, Any], handle: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Do a request on a host that does not see the run's folder.

    Args:
        request: as `RemoteFilesPool` sends it.
        handle: `Worker.handle` of this process.

    Raises:
        StoreError: the depot cannot be read or written.
    """
    parcel = request["depot"]
    remote, place = RemoteFiles(parcel["url"]), cache() / "runs" / parcel["run"]
    with _opening:
        open_here(remote, place, parcel)
    for path in parcel["files"]:
        if not (place / path).exists():
            remote.get(f"runs/{parcel['run']}/{path}", place / path)
            drop_older(place, path)
    local = {**request, "run": str(place)}
    if request["do"] != "train":
        local["server"] = str(place / f"rounds/{request['round']:04d}/{SERVER}")
    answer = handle(local)
    work = place / "work" / f"{request['round']:04d}"
    for done in answer.get("clients", {}).values():
        for name in done.get("files", {}).values():
            remote.put(work / name, f"{parcel['back']}/{name}")
    # Of this round another copy of the cohort may still be in use.
    for folder in work.parent.glob("*"):
        if folder.name < work.name:
            shutil.rmtree(folder, ignore_errors=True)
    return answer


def open_here(remote: RemoteFiles, place: Path, parcel: dict[str, Any]) -> None:
    """Data, partition and settings of a run, as if it had been started on this host."""
    folders = {what: cache() / what / parcel[what] for what in ("data", "partition")}
    if (place / "lineage.json").exists() and all(folder.is_dir() for folder in folders.values()):
        for folder in (place, *folders.values()):
            os.utime(folder)
        return
    forget_unused(cache())
    for what, folder in folders.items():
        remote.get_folder(f"{what}/{parcel[what]}", folder)
    remote.get(f"runs/{parcel['run']}/settings.yaml", place / "settings.yaml")
    remote.get(f"runs/{parcel['run']}/lineage.json", place / "sent.json")
    lineage = read_json(place / "sent.json")
    write_json(
        place / "lineage.json",
        lineage | {what: {**lineage[what], "folder": str(folder)} for what, folder in folders.items()},
    )


def drop_older(place: Path, path: str) -> None:
    """Remove earlier versions of a file that has just come."""
    top = path.split("/")[0]
    for other in (place / top).rglob("*.safetensors"):
        if older(path, str(other.relative_to(place))):
            other.unlink(missing_ok=True)


def forget_unused(place: Path, days: float = UNUSED_DAYS) -> None:
    """Remove the runs, data and partitions of a cache that were last used longer ago than `days`."""
    limit = time.time() - days * 24 * 3600
    for folder in (*place.glob("runs/*"), *place.glob("data/*"), *place.glob("partition/*")):
        # Another process of this host may be doing the same.
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
