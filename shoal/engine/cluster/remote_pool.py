"""Workers that share no file system with this machine: what a request reads goes to them through a URL, and back.

Before a request is sent, what it reads is put there: settings, data and partition once, then each server state, memory
and message to a peer that is new. Copies are named by their digests, so that no worker takes the bytes that a path had
before a run was interrupted for those that it has now. The clients' files come back the same way and are compared with
their digests before the engine hears of them: the run's folder stays the one record.

A transfer that fails is the loss of one worker, or the failure of one client, only as long as the store answers. Where
it does not, the run stops: clients that cannot be reached would else be left out of a round, one after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.core.errors import FailureCause
from shoal.engine.cluster.remote_files import THREADS, DepotError, DepotGone, RemoteFiles, side_by_side
from shoal.engine.messages.wire import Answer, Failed, RemoteRequest, Request, Train, Trained
from shoal.engine.store.codec import StoreError, changed, file_digest, private_folder, write_sealed
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.round_paths import STATES, RoundPaths, copy_of, folders_of_clients, server_file, version
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.engine.workers.worker_processes import WorkerLost

UNUSED = 3
"""Rounds in which nobody began from a server state before its copy goes, where clients begin from several."""
HOST_FAILURES = (FailureCause.FILE, FailureCause.REMOTE_FILES)
"""Failures of a host that has files of its own, such as a full disk: another worker may do the work."""


class RemotePool(Protocol):
    """Workers that may be on other hosts, as in `shoal.engine.cluster.pools`."""

    @property
    def count(self) -> int:
        """How many requests are worked on at once."""
        ...

    @property
    def most(self) -> int:
        """How many requests may be given to it at once; those that no worker is free for wait there."""
        ...

    def call(self, request: RemoteRequest) -> Answer:
        """Have a free worker do a request, whose files are copies."""
        ...


@dataclass
class Copies:
    """What of a run has copies behind the URL.

    Args:
        run: the run's folder.
        key: what the run is called there.
    """

    run: RunFolder
    key: str
    data: str = ""
    partition: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Digests of what every request reads, by path in the run's folder."""
    put: dict[str, dict[str, Future[None]]] = field(default_factory=dict)
    """By folder, then by path: what was put there, or is on its way."""
    states: dict[str, int] = field(default_factory=dict)
    """Where clients begin from several states: by copy, the last round in which some did."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class RemoteFilesPool:
    """Workers that get copies of their files through a URL.

    Args:
        pool: the workers.
        url: fsspec URL that this machine and all workers reach (setting `workers.remote_files`).
    """

    def __init__(self, pool: RemotePool, url: str) -> None:
        self._pool, self._remote = pool, RemoteFiles(url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal copies")
        self._lock, self._gone = threading.Lock(), ""
        self._runs: dict[Path, Copies] = {}
        self._states: dict[Path, tuple[object, str]] = {}

    @property
    def count(self) -> int:
        """As of `shoal.engine.cluster.pools.Pool`."""
        return self._pool.count

    @property
    def most(self) -> int:
        """As of `shoal.engine.cluster.pools.Pool`."""
        return self._pool.most

    def call(self, request: Request) -> Answer:
        """As of `shoal.engine.cluster.pools.Pool`.

        Raises:
            WorkerLost: the worker was lost, or a transfer to it or from it failed.
            DepotGone: a transfer failed, and the store does not answer any more.
            StoreError: a file of the run's folder is missing or changed.
        """
        run = RunFolder(request.run)
        try:
            copies, files = self._copies(run)
            files = files | self._send(copies, request)
        except DepotError as error:
            self._reached(run, str(error))
            raise self._lost(run, str(error)) from error
        # Two copies of a cohort may be at work, and one that an interrupted run left behind: each has its own folder.
        back = f"runs/{copies.key}/back/{uuid.uuid4().hex}"
        asked = RemoteRequest(request, self._remote.url, copies.key, files, back, copies.data, copies.partition)
        try:
            answer = self._pool.call(asked)
            if isinstance(answer, Failed) and answer.cause in HOST_FAILURES:
                self._forget(copies, files)  # a copy may be gone or damaged there: the next try finds another
                if answer.cause == FailureCause.REMOTE_FILES:
                    self._reached(run, answer.error)
                raise self._lost(run, answer.error)
            if isinstance(answer, Trained):
                answer = self._fetched(RoundPaths(run.path, request.round), back, answer)
                for done in answer.clients.values():
                    if isinstance(done, Failed) and done.cause == FailureCause.REMOTE_FILES:
                        self._reached(run, done.error)
                        break
        finally:
            if not self._gone:
                self._later(self._remote.drop_folder, back)
        return answer

    def close(self) -> None:
        """Remove the copies of runs, where the store answers; data and partitions stay for other runs."""
        if self._gone:
            self._remote.leave()
            self._threads.shutdown(wait=False, cancel_futures=True)
            return
        self._threads.shutdown(cancel_futures=True)
        for copies in self._runs.values():
            self._remote.drop_folder(f"runs/{copies.key}")

    def _reached(self, run: RunFolder, why: str) -> None:
        """After a transfer that failed go on only where the store answers.

        Raises:
            DepotGone: it does not.
        """
        self._check_there()
        if not self._remote.answers():
            self._gone = (
                f"{why}, and it does not answer any more: see to it, then go on with `shoal run --resume {run.name}`"
            )
        self._check_there()

    def _check_there(self) -> None:
        """Have what waited for its turn at a store that is gone meanwhile not wait for the store as well.

        Raises:
            DepotGone: as it was found to be.
        """
        if self._gone:
            raise DepotGone(self._gone)

    def _lost(self, run: RunFolder, why: str) -> WorkerLost:
        return WorkerLost(
            f"{why}; where this stays so, see to the depot and the workers' disks, then go on with "
            f"`shoal run --resume {run.name}`"
        )

    def _later(self, act: Callable[[str], None], path: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed, and all copies of runs removed with it
            self._threads.submit(act, path)

    def _forget(self, copies: Copies, files: Mapping[str, str]) -> None:
        with copies.lock:
            copies.files = {}
            for path, digest in files.items():
                copy = copy_of(path, digest)
                copies.put.get(copy.rpartition("/")[0], {}).pop(copy, None)

    def _copies(self, run: RunFolder) -> tuple[Copies, dict[str, str]]:
        """The copies of a run, and the digests of what every request reads, which is there afterwards."""
        name = f"{run.name}-{hashlib.sha256(str(run.path).encode()).hexdigest()[:8]}"
        with self._lock:
            copies = self._runs.setdefault(run.path, Copies(run, name))
        with copies.lock:
            self._check_there()
            if not copies.files:
                lineage = run.lineage()
                copies.data = lineage.data.digest
                copies.partition = lineage.partition.digest
                for what, digest in (("data", copies.data), ("partition", copies.partition)):
                    self._remote.put_folder(run.folder_of(what), f"{what}/{digest}")
                files = {name: file_digest(run.path / name) for name in (SETTINGS, LINEAGE)}
                for name, digest in files.items():
                    self._remote.put(run.path / name, f"runs/{copies.key}/{copy_of(name, digest)}")
                copies.files = files
            return copies, copies.files

    def _send(self, copies: Copies, request: Request) -> dict[str, str]:
        """Put there what a request reads and is not there yet; the digest of each file by its path.

        Raises:
            DepotError: one of them cannot be put there.
            StoreError: a file is missing, or not the one of its digest.
        """
        digests, server = files_read(request)
        name = server_file(request.state if isinstance(request, Train) else request.round)
        sources = {path: copies.run.path / path for path in digests} | {name: server}
        wanted: dict[str, set[str]] = {folder: set() for folder in folders_of(request)}
        puts: list[Future[None]] = []
        with copies.lock:
            whole = {path: digest or self._digest(sources[path]) for path, digest in digests.items()}
            whole[name] = self._digest(server)
            for path, digest in whole.items():
                copy = copy_of(path, digest)
                folder = copy.rpartition("/")[0]
                wanted.setdefault(folder, set()).add(copy)
                there = copies.put.setdefault(folder, {})
                if copy not in there or (there[copy].done() and there[copy].exception()):
                    to = f"runs/{copies.key}/{copy}"
                    there[copy] = self._threads.submit(self._put, sources[path], to, digest)
                puts.append(there[copy])
            if several_states(request):
                del wanted[STATES]
                self._drop_states(copies, copy_of(name, whole[name]), request.round)
            # What a later version took the place of.
            for folder, copied in wanted.items():
                there = copies.put.get(folder, {})
                for copy in there.keys() - copied:
                    there.pop(copy)
                    self._later(self._remote.drop, f"runs/{copies.key}/{copy}")
        wait(puts)
        for put in puts:
            put.result()
        return whole

    def _drop_states(self, copies: Copies, wanted: str, round: int) -> None:
        """Remove the server states that nobody began from for some rounds; at once, lest one be put anew meanwhile."""
        copies.states[wanted] = round
        for copy, last in list(copies.states.items()):
            if last < round - UNUSED:
                del copies.states[copy]
                copies.put.get(STATES, {}).pop(copy, None)
                self._remote.drop(f"runs/{copies.key}/{copy}")

    def _put(self, source: Path, path: str, digest: str) -> None:
        if digest_of(source) != digest:
            raise changed(source)
        self._remote.put(source, path)

    def _digest(self, path: Path) -> str:
        """The digest of a file; of one that is still the same it is known."""
        now = version(path)
        known = self._states.get(path)
        if known is None or known[0] != now:
            known = self._states[path] = (now, digest_of(path))
            for old in list(self._states)[:-8]:
                self._states.pop(old, None)
        return known[1]

    def _fetched(self, paths: RoundPaths, back: str, answer: Trained) -> Trained:
        """The clients' files, into the run's folder; the done-file last, as a worker of this machine would write it."""
        private_folder(paths.run / "work")
        private_folder(paths.work)
        found = dict(answer.clients)
        works = {client: done for client, done in found.items() if isinstance(done, FinishedWork)}
        digests = {name: digest for done in works.values() for name, digest in done.sha256.items()}

        def fetch(name: str) -> DepotError | None:
            try:
                self._remote.get(f"{back}/{name}", paths.work / name, digests[name])
            except DepotError as error:
                return error
            return None

        names = sorted(digests)
        found |= lost(works, dict(zip(names, side_by_side(fetch, names), strict=True)))
        for client, done in works.items():
            if found[client] is done:
                write_sealed(paths.done(client), done.to_json(), sync=False)
        return Trained(found)


def lost(works: Mapping[int, FinishedWork], failed: Mapping[str, DepotError | None]) -> dict[int, Failed]:
    """The clients whose work is lost since one of its files could not be brought from one place to another.

    Args:
        works: what clients did.
        failed: by name of a file, which may be of several of them, why not; None: it could.
    """
    found = {}
    for client, done in works.items():
        if (error := next((error for name in done.sha256 if (error := failed[name])), None)) is not None:
            found[client] = Failed(f"the work of client {client} is lost: {error}", FailureCause.REMOTE_FILES)
    return found


def digest_of(path: Path) -> str:
    """Hex digest of a file of the run's folder.

    Raises:
        StoreError: it is missing, or cannot be read.
    """
    try:
        return file_digest(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def files_read(request: Request) -> tuple[dict[str, str | None], Path]:
    """The files of clients that a request reads, their digests by path in the run's folder, and the server state's."""
    known: Mapping[str, str]
    if isinstance(request, Train):
        paths = {path for each in request.clients for path in (each.memory, *each.inbox) if path}
        known = {path: digest for each in request.clients for path, digest in each.sha256.items()}
        server = request.server or RoundPaths(request.run, request.state).server
    else:
        paths, known, server = request.memory_index.files(), request.memory_index.sha256, request.server
    return {path: known.get(path) for path in sorted(paths)}, server


def several_states(request: Request | RemoteRequest) -> bool:
    """Whether other requests of the same round may begin from other server states."""
    asked = request.request if isinstance(request, RemoteRequest) else request
    return isinstance(asked, Train) and asked.begun_from is not None


def folders_of(request: Request | RemoteRequest) -> set[str]:
    """The folders of the clients that a request is about: what of them it does not name is of no more use."""
    if isinstance(request, RemoteRequest):
        return folders_of(request.request)
    if isinstance(request, Train):
        return folders_of_clients(each.client for each in request.clients)
    return folders_of_clients({*request.memory_index.memory, *request.memory_index.inbox})
