"""What a worker does on a host that does not see the run's folder: it takes copies of files into a cache, works there.

Copies are named by their digests and compared with them when they come, so that one that lies there is the right one
whatever became of the run meanwhile. The processes of a host share the cache, and one of them fetches what all want.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.cluster.remote_files import DepotError, RemoteFiles, side_by_side
from shoal.engine.cluster.remote_pool import folders_of, lost, several_states
from shoal.engine.messages.wire import Answer, ClientFiles, RemoteRequest, Request, Train, Trained
from shoal.engine.store.codec import StoreError, file_digest, private_folder
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import MemoryIndex
from shoal.engine.store.round_paths import STATES, RoundPaths, copy_of, server_file, version
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, read_lineage, write_lineage
from shoal.engine.store.shared_temp import own_folder

CACHE_VARIABLE = "SHOAL_CACHE"
UNUSED_DAYS = 7
"""After so long a worker forgets a run, data or a partition that nobody asked it for."""
LOCKS = ".locks"
IN_USE = 600.0
"""Seconds for which a server state is kept after it was used, where requests may begin from several."""
WAIT = 600.0
"""Seconds to wait for another process that fetches the same file, before fetching it beside that one."""

_opening = threading.Lock()
"""A worker may have several threads, and files are written under a scratch name of the process."""


def cache() -> Path:
    """Where a worker keeps its copies of remote files: SHOAL_CACHE, or a folder of the user's among temporary files.

    While no run is at work it may be deleted: what is missing is taken again. Of itself it loses what was not used for
    `UNUSED_DAYS`, when a run comes that is new here.

    Raises:
        OSError: no folder can be made among the temporary files.
    """
    value = os.environ.get(CACHE_VARIABLE)
    return Path(value) if value else own_folder("shoal-cache")


def with_remote_files(remote_request: RemoteRequest, handle: Callable[[Request], Answer]) -> Answer:
    """Do a request on a host that does not see the run's folder.

    Args:
        remote_request: as `RemoteFilesPool` sends it.
        handle: `Worker.handle` of this process.

    Raises:
        StoreError: the remote files cannot be read. OSError: this host cannot keep them.
    """
    remote, place = RemoteFiles(remote_request.url), place_of(remote_request)
    with _opening:
        private_folder(cache())  # it may lie among everybody's temporary files
        open_here(remote, place, remote_request)
    of_run = {path: digest for path, digest in remote_request.files.items() if path not in (SETTINGS, LINEAGE)}
    copies = {path: copy_of(path, digest) for path, digest in of_run.items()}
    there = f"runs/{remote_request.key}"
    side_by_side(lambda path: fetch(remote, f"{there}/{copies[path]}", place / copies[path], of_run[path]), copies)
    drop_others(place, set(copies.values()), folders_of(remote_request), spared=several_states(remote_request))
    request = request_here(remote_request.request, place, copies, of_run)
    answer = handle(request)
    paths = RoundPaths(place, request.round)
    if isinstance(answer, Trained):
        answer = put_back(remote, paths, remote_request.back, answer)
    # Of this round another copy of the cohort may still be in use.
    for folder in paths.work.parent.glob("*"):
        if folder.name < paths.work.name:
            shutil.rmtree(folder, ignore_errors=True)
    return answer


def place_of(request: RemoteRequest) -> Path:
    """The folder of a run in the cache; of a run that goes on with another lineage it is another."""
    about = request.files[SETTINGS] + request.files[LINEAGE]
    return cache() / "runs" / f"{request.key}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


def request_here(request: Request, place: Path, copies: dict[str, str], sha256: dict[str, str]) -> Request:
    """A request whose files are the copies of this host.

    Args:
        request: as it was asked.
        place: the folder of the run here.
        copies: of each file that it reads, where in `place` its copy is.
        sha256: of each, its digest.
    """
    known = {copies[path]: digest for path, digest in sha256.items()}
    if isinstance(request, Train):
        clients = tuple(
            ClientFiles(
                each.client,
                each.memory and copies[each.memory],
                inbox := tuple(copies[path] for path in each.inbox),
                {copy: known[copy] for copy in (*inbox, *([copies[each.memory]] if each.memory else ()))},
            )
            for each in request.clients
        )
        return replace(request, run=place, clients=clients, server=place / copies[server_file(request.state)])
    index = request.memory_index
    here = MemoryIndex.from_json(
        {
            "memory": {client: copies[path] for client, path in index.memory.items()},
            "inbox": {client: [copies[path] for path in paths] for client, paths in index.inbox.items()},
            "sha256": known,
        }
    )
    return replace(request, run=place, memory_index=here, server=place / copies[server_file(request.round)])


def put_back(remote: RemoteFiles, paths: RoundPaths, back: str, answer: Trained) -> Trained:
    """Put the clients' files where they are fetched from; whose files cannot be put there has failed, and nobody else.

    Args:
        remote: the store.
        paths: of the round, in the run's folder here.
        back: the folder there.
        answer: the clients' work.
    """
    found = dict(answer.clients)
    works = {client: done for client, done in found.items() if isinstance(done, FinishedWork)}

    def put(name: str) -> DepotError | None:
        try:
            remote.put(paths.work / name, f"{back}/{name}")
        except DepotError as error:
            return error
        return None

    names = sorted({name for done in works.values() for name in done.files.values()})
    failed = dict(zip(names, side_by_side(put, names), strict=True))
    return Trained({**found, **lost(works, failed)})


# --- the cache --------------------------------------------------------------------------------------------------------


def open_here(remote: RemoteFiles, place: Path, request: RemoteRequest) -> None:
    """Data, partition and settings of a run, as if it had been started on this host."""
    digests = {"data": request.data, "partition": request.partition}
    folders = {what: cache() / what / digest for what, digest in digests.items()}
    if (place / LINEAGE).exists() and all(folder.is_dir() for folder in folders.values()):
        for folder in (place, *folders.values()):
            os.utime(folder)
        return
    forget_unused(cache())
    for what, folder in folders.items():
        with held(f"{what}-{digests[what][:16]}"):
            remote.get_folder(f"{what}/{digests[what]}", folder)
    for name, target in ((SETTINGS, SETTINGS), (LINEAGE, "sent.json")):
        digest = request.files[name]
        fetch(remote, f"runs/{request.key}/{copy_of(name, digest)}", place / target, digest)
    lineage = read_lineage(place / "sent.json")
    write_lineage(place / LINEAGE, lineage.with_folders(str(folders["data"]), str(folders["partition"])))


def fetch(remote: RemoteFiles, path: str, target: Path, sha256: str) -> None:
    """Have a file here, once for all processes of this host.

    Args:
        remote: the store.
        path: of the file there.
        target: where it is wanted.
        sha256: its hex digest; a file of another is not used, wherever it comes from.

    Raises:
        DepotError: it cannot be fetched, or has another digest.
    """
    if is_here(target, sha256):
        return
    with held(sha256[:3]):
        if not is_here(target, sha256):
            remote.get(path, target, sha256)


def is_here(path: Path, sha256: str) -> bool:
    """Whether a file is here, and has a digest; of one that did not change since, it is known."""
    now = version(path)
    with contextlib.suppress(OSError, StoreError):  # dropped meanwhile
        return now is not None and _digest(path, now) == sha256
    return False


@functools.lru_cache(4096)
def _digest(path: Path, _: tuple[int, int]) -> str:
    return file_digest(path)


@contextlib.contextmanager
def held(name: str) -> Iterator[None]:
    """Keep other processes and threads of this host out, of those that hold the same name; not longer than `WAIT`.

    All that is guarded is written under scratch names and renamed, so that going in together costs no more than time.
    """
    folder = cache() / LOCKS
    private_folder(folder)
    with (folder / name).open("a") as file:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:  # a file system without locks
                break
        yield


def drop_others(place: Path, named: set[str], folders: set[str], *, spared: bool = False) -> None:
    """Remove, of the folders that copies lie in, every other copy: an earlier version, or what was read.

    Args:
        place: the folder of a run here.
        named: the copies that are in use.
        folders: further folders to look at.
        spared: other requests may be using other server states: of those only the ones go that nobody used of late.
    """
    limit = time.time() - IN_USE
    for folder in {copy.rpartition("/")[0] for copy in named} | folders:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(place / folder):
                if not (entry.name.endswith(".safetensors") and entry.is_file()):
                    continue
                with contextlib.suppress(OSError):
                    new = spared and folder == STATES and entry.stat().st_mtime > limit
                    if f"{folder}/{entry.name}" not in named:
                        if not new:
                            os.unlink(entry.path)
                    elif spared and folder == STATES and not new:
                        os.utime(entry.path)


def forget_unused(place: Path, days: float = UNUSED_DAYS) -> None:
    """Remove the runs, data and partitions of a cache that were last used longer ago than `days`."""
    limit = time.time() - days * 24 * 3600
    for folder in (*place.glob("runs/*"), *place.glob("data/*"), *place.glob("partition/*")):
        # Another process of this host may be doing the same.
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
