"""The cache of a worker on a host that does not see the run's folder: it holds copies of the files that it needs.

Copies are named by their digests, which are checked on arrival, so that a copy in the cache is right even if the run
has changed meanwhile. The processes of a host share the cache: one of them fetches a file for all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from shoal.core.durable import lock_if_free, private_folder
from shoal.engine.cluster.copy_names import copy_of, server_file
from shoal.engine.cluster.remote_files import RemoteFiles, map_threads
from shoal.engine.cluster.remote_pool import folders_of, transfer_failures
from shoal.engine.messages.wire import Answer, FileRequest, RemoteRequest, Train, Trained
from shoal.engine.store.codec import StoreError, file_digest
from shoal.engine.store.memory_index import ClientFiles
from shoal.engine.store.round_paths import WORK, RoundPaths, version
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, read_lineage, write_lineage
from shoal.engine.store.shared_temp import own_folder

CACHE_VARIABLE = "SHOAL_CACHE"
UNUSED_DAYS = 7
"""After so long a worker removes a run, data or a partition from its cache."""
LOCKS = ".locks"
LOCK_SECONDS = 600.0
"""Time to wait for another process that fetches the same file, before fetching it too."""

_opening = threading.Lock()
"""A worker may have several threads, and the scratch name of a file names only the process."""


def cache() -> Path:
    """Return the folder of a worker's copies: SHOAL_CACHE, or the user's own folder among temporary files.

    It may be deleted while no run uses it: missing files are fetched again. When a run begins that is new here, files
    that were not used for `UNUSED_DAYS` are removed.

    Raises:
        OSError: the folder among the temporary files cannot be made.
    """
    value = os.environ.get(CACHE_VARIABLE)
    if value:
        return Path(value)
    return own_folder("shoal-cache")


def with_remote_files(remote_request: RemoteRequest, handle: Callable[[FileRequest], Answer]) -> Answer:
    """Do a request on a host that does not see the run's folder.

    Args:
        remote_request: as `RemoteFilesPool` sends it.
        handle: `Worker.handle` of this process.

    Raises:
        StoreError: the remote files cannot be read. OSError: this host cannot keep them.
    """
    remote = RemoteFiles(remote_request.url)
    place = cached_run(remote_request)
    with _opening:
        private_folder(cache())  # it may be among the temporary files of all users
        cache_run(remote, place, remote_request)
    digests = {path: digest for path, digest in remote_request.files.items() if path not in (SETTINGS, LINEAGE)}
    copies = {path: copy_of(path, digest) for path, digest in digests.items()}
    folder = f"runs/{remote_request.key}"
    map_threads(lambda path: fetch(remote, f"{folder}/{copies[path]}", place / copies[path], digests[path]), copies)
    drop_unused_copies(place, set(copies.values()), folders_of(remote_request.request))
    request = localise_request(remote_request.request, place, copies, digests)
    answer = handle(request)
    paths = RoundPaths(place, request.round)
    if isinstance(answer, Trained):
        answer = put_back(remote, paths, remote_request.back, answer)
    # Not of this round: another copy of the cohort may still use its files.
    for earlier in paths.work.parent.glob("*"):
        if earlier.name < paths.work.name:
            shutil.rmtree(earlier, ignore_errors=True)
    return answer


def cached_run(request: RemoteRequest) -> Path:
    """Return the folder of a run in the cache; with another lineage the run has another folder."""
    digests = request.files[SETTINGS] + request.files[LINEAGE]
    return cache() / "runs" / f"{request.key}-{hashlib.sha256(digests.encode()).hexdigest()[:16]}"


def localise_request(request: FileRequest, place: Path, copies: dict[str, str], sha256: dict[str, str]) -> FileRequest:
    """Return a request that reads the copies of this host.

    Args:
        request: the original request.
        place: the folder of the run here.
        copies: for each file that it reads, the path of the copy in `place`.
        sha256: hex digest of each file.
    """
    clients = tuple(
        ClientFiles(
            files.client,
            files.memory and copies[files.memory],
            tuple(copies[path] for path in files.inbox),
            {copies[path]: sha256[path] for path in files.paths},
            tuple(copies[path] for path in files.message),
        )
        for files in request.clients
    )
    if isinstance(request, Train):
        return replace(request, run=place, clients=clients)
    return replace(request, run=place, clients=clients, server=place / copies[server_file(request.round)])


def put_back(remote: RemoteFiles, paths: RoundPaths, back: str, answer: Trained) -> Trained:
    """Write the clients' files to the store; a client whose files cannot be written has failed.

    Args:
        remote: the store.
        paths: of the round, in the run's folder here.
        back: the folder in the store.
        answer: the clients' work.
    """
    failures = transfer_failures(answer.finished, lambda name: remote.put(paths.work / name, f"{back}/{name}"))
    return Trained({**answer.clients, **failures})


# --- the cache --------------------------------------------------------------------------------------------------------


def cache_run(remote: RemoteFiles, place: Path, request: RemoteRequest) -> None:
    """Fetch data, partition and settings of a run into the cache, unless they are there."""
    digests = {"data": request.data, "partition": request.partition}
    folders = {what: cache() / what / digest for what, digest in digests.items()}
    if (place / LINEAGE).exists() and all(folder.is_dir() for folder in folders.values()):
        for folder in (place, *folders.values()):
            os.utime(folder)
        return
    forget_unused(cache())
    for what, folder in folders.items():
        with lock(f"{what}-{digests[what][:16]}"):
            remote.get_folder(f"{what}/{digests[what]}", folder)
    for name, target in ((SETTINGS, SETTINGS), (LINEAGE, "sent.json")):
        digest = request.files[name]
        fetch(remote, f"runs/{request.key}/{copy_of(name, digest)}", place / target, digest)
    lineage = read_lineage(place / "sent.json")
    write_lineage(place / LINEAGE, lineage.with_folders(str(folders["data"]), str(folders["partition"])))


def fetch(remote: RemoteFiles, path: str, target: Path, sha256: str) -> None:
    """Copy a file from the store, once for all processes of this host.

    Args:
        remote: the store.
        path: of the file in the store.
        target: path of the copy.
        sha256: its hex digest; a file with another digest is not used.

    Raises:
        RemoteFilesError: it cannot be fetched, or has another digest.
    """
    if is_cached(target, sha256):
        return
    with lock(sha256[:3]):
        if not is_cached(target, sha256):
            remote.get(path, target, sha256)


def is_cached(path: Path, sha256: str) -> bool:
    """Return whether a file exists and has this digest, which is computed once for each version of the file."""
    newest = version(path)
    with contextlib.suppress(OSError, StoreError):  # removed meanwhile
        return newest is not None and _digest(path, newest) == sha256
    return False


@functools.lru_cache(4096)
def _digest(path: Path, _: tuple[int, int]) -> str:
    return file_digest(path)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Keep out other processes and threads of this host that lock the same name, for at most `LOCK_SECONDS`.

    Guarded files are written under scratch names and renamed, so that two writers at once cost only time.
    """
    folder = cache() / LOCKS
    private_folder(folder)
    with lock_if_free(folder / name, LOCK_SECONDS):
        yield


def drop_unused_copies(place: Path, used: set[str], folders: set[str]) -> None:
    """Remove copies that are no longer in use from the folders of those that are.

    Args:
        place: the folder of a run here.
        used: the copies in use.
        folders: further folders to search.
    """
    # Other requests of the round may use other messages: these go with the round's folder.
    used_folders = {copy.rpartition("/")[0] for copy in used if not copy.startswith(WORK)}
    for folder in used_folders | folders:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(place / folder):
                if entry.name.endswith(".safetensors") and entry.is_file() and f"{folder}/{entry.name}" not in used:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def forget_unused(place: Path, days: float = UNUSED_DAYS) -> None:
    """Remove the runs, data and partitions of a cache whose last use was more than `days` ago."""
    limit = time.time() - days * 24 * 3600
    for folder in (*place.glob("runs/*"), *place.glob("data/*"), *place.glob("partition/*")):
        # Another process of this host may do the same.
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
