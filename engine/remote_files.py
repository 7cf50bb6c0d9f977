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
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import fsspec

from engine.addresses import masked, resolved
from engine.codec import PRIVATE, StoreError, file_digest, private_folder, read_sealed, write_sealed
from engine.finished_work import FinishedWork
from engine.round_paths import RoundPaths, is_earlier_version, server_file
from engine.run_folder import RunFolder
from engine.settings import SettingsError
from engine.wire import Answer, Failed, RemoteRequest, Request, Train, Trained

CACHE_VARIABLE = "SHOAL_CACHE"
COMPLETE = "complete"
"""The file that is put last into a folder of data: without it the others may be missing."""
UNUSED_DAYS = 7
"""After so long a worker forgets a run, data or a partition that nobody asked it for."""


class RemotePool(Protocol):
    """Workers that may be on other hosts, as in `engine.pools`."""

    count: int

    def call(self, request: RemoteRequest) -> Answer:
        """Have a free worker do a request, whose files are copies."""
        ...


class RemoteFiles:
    """Files under an fsspec URL, by relative path.

    Args:
        url: such as s3://bucket/shoal or file:///mnt/shared/shoal; `${NAME}` of an environment variable is replaced.

    Raises:
        SettingsError: no such protocol, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            self.fs, root = fsspec.core.url_to_fs(resolved(url, "workers.depot"))
        except (ValueError, ImportError) as error:
            raise SettingsError(f"workers.depot: {url!r} cannot be used: {masked(str(error), url)}") from None
        self.url, self.root = url, root.rstrip("/")

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # every store has exceptions of its own
            said = masked(str(error), self.url)
            # Without its cause, whose words hold what is masked here and reach logs with it.
            cause = error if said == str(error) else None
            raise StoreError(
                f"the depot {masked(self.url)} failed at {what}: {type(error).__name__}: {said}"
            ) from cause

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
                scratch.chmod(PRIVATE)
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
                if Path(name).name != name:
                    raise StoreError(f"the depot {masked(self.url)} names {name[:60]!r} in {path}: that is no file")
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


# --- this machine -----------------------------------------------------------------------------------------------------


class RemoteFilesPool:
    """Workers that get copies of their files through a URL.

    Args:
        pool: the workers.
        url: fsspec URL that this machine and all workers reach (setting `workers.depot`).
    """

    def __init__(self, pool: RemotePool, url: str) -> None:
        self.count = pool.count
        self._pool, self._remote = pool, RemoteFiles(url)
        self._lock = threading.Lock()
        self._sent: dict[str, set[str]] = {}
        """By key of a run: which of its files have copies there."""
        self._keys: dict[Path, str] = {}
        self._calls = itertools.count()

    def call(self, request: Request) -> Answer:
        """As of `engine.pools.Pool`.

        Raises:
            StoreError: the remote files cannot be written or read.
        """
        run = RunFolder(request.run)
        needed = files_read(request)
        with self._lock:
            key = self._keys.get(run.path) or self._open(run)
            for path, source in needed.items():
                self._send(key, source, path)
            # Two copies of a cohort may be at work: each answers in a folder of its own.
            back = f"runs/{key}/back/{next(self._calls)}"
        lineage = run.lineage()
        digests = lineage["data"]["digest"], lineage["partition"]["digest"]
        answer = self._pool.call(RemoteRequest(request, self._remote.url, key, tuple(sorted(needed)), back, *digests))
        if isinstance(answer, Trained):
            paths = RoundPaths(run.path, request.round)
            results = answer.clients.items()
            answer = Trained({k: v if isinstance(v, Failed) else self._fetch(paths, back, v) for k, v in results})
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
        for other in [p for p in sent if is_earlier_version(path, p)]:
            sent.discard(other)
            self._remote.drop(f"runs/{key}/{other}")
        sent.add(path)

    def _fetch(self, paths: RoundPaths, back: str, done: FinishedWork) -> FinishedWork | Failed:
        """A client's files, into the run's folder; the done-file last, as a worker of this machine would write it."""
        for name, digest in done.sha256.items():
            self._remote.get(f"{back}/{name}", paths.work / name)
            if file_digest(paths.work / name) != digest:
                return Failed(f"{name} of client {done.client} came back from the depot with other bytes")
        write_sealed(paths.done(done.client), done.plain(), sync=False)
        return done


def files_read(request: Request) -> dict[str, Path]:
    """The files that a request reads: path in the run's folder, and where it is now."""
    if isinstance(request, Train):
        state = RoundPaths(request.run, request.round - 1).server
        found = {server_file(request.round - 1): state}
        paths = {path for each in request.clients for path in (each.memory, *each.inbox) if path}
    else:
        # The state's checkpoint is not closed yet; the next round asks for it under its lasting name.
        found = {server_file(request.round): request.server}
        paths = request.memory_index.files()
    return found | {path: request.run / path for path in sorted(paths)}


# --- the workers' hosts -----------------------------------------------------------------------------------------------


def cache() -> Path:
    """Where a worker keeps its copies of remote files: SHOAL_CACHE, or a folder of the user's among temporary files.

    While no run is at work it may be deleted: what is missing is taken again. Of itself it loses what was not used for
    `UNUSED_DAYS`, when a run comes that is new here.
    """
    value = os.environ.get(CACHE_VARIABLE)
    return Path(value) if value else Path(tempfile.gettempdir()) / f"shoal-cache-{getpass.getuser()}"


_opening = threading.Lock()
"""A worker may have several threads, and files are written under a scratch name of the process."""


def with_remote_files(remote_request: RemoteRequest, handle: Callable[[Request], Answer]) -> Answer:
    """Do a request on a host that does not see the run's folder.

    Args:
        remote_request: as `RemoteFilesPool` sends it.
        handle: `Worker.handle` of this process.

    Raises:
        StoreError: the remote files cannot be read or written.
    """
    remote, place = RemoteFiles(remote_request.url), cache() / "runs" / remote_request.key
    with _opening:
        private_folder(cache())  # it may lie among everybody's temporary files
        open_here(remote, place, remote_request)
    for path in remote_request.files:
        if not (place / path).exists():
            remote.get(f"runs/{remote_request.key}/{path}", place / path)
            drop_older(place, path)
    request = remote_request.request
    paths = RoundPaths(place, request.round)
    if isinstance(request, Train):
        answer = handle(replace(request, run=place))
    else:
        answer = handle(replace(request, run=place, server=paths.server))
    if isinstance(answer, Trained):
        for done in answer.clients.values():
            for name in () if isinstance(done, Failed) else done.files.values():
                remote.put(paths.work / name, f"{remote_request.back}/{name}")
    # Of this round another copy of the cohort may still be in use.
    for folder in paths.work.parent.glob("*"):
        if folder.name < paths.work.name:
            shutil.rmtree(folder, ignore_errors=True)
    return answer


def open_here(remote: RemoteFiles, place: Path, request: RemoteRequest) -> None:
    """Data, partition and settings of a run, as if it had been started on this host."""
    digests = {"data": request.data, "partition": request.partition}
    folders = {what: cache() / what / digest for what, digest in digests.items()}
    if (place / "lineage.json").exists() and all(folder.is_dir() for folder in folders.values()):
        for folder in (place, *folders.values()):
            os.utime(folder)
        return
    forget_unused(cache())
    for what, folder in folders.items():
        remote.get_folder(f"{what}/{digests[what]}", folder)
    remote.get(f"runs/{request.key}/settings.yaml", place / "settings.yaml")
    remote.get(f"runs/{request.key}/lineage.json", place / "sent.json")
    lineage = read_sealed(place / "sent.json")
    write_sealed(
        place / "lineage.json",
        lineage | {what: {**lineage[what], "folder": str(folder)} for what, folder in folders.items()},
    )


def drop_older(place: Path, path: str) -> None:
    """Remove earlier versions of a file that has just come."""
    top = path.split("/")[0]
    for other in (place / top).rglob("*.safetensors"):
        if is_earlier_version(path, str(other.relative_to(place))):
            other.unlink(missing_ok=True)


def forget_unused(place: Path, days: float = UNUSED_DAYS) -> None:
    """Remove the runs, data and partitions of a cache that were last used longer ago than `days`."""
    limit = time.time() - days * 24 * 3600
    for folder in (*place.glob("runs/*"), *place.glob("data/*"), *place.glob("partition/*")):
        # Another process of this host may be doing the same.
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
