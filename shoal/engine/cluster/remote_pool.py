"""Workers that share no file system with this machine: files travel through a URL in both directions.

Before a request is sent, the files that it reads are written to the store: settings, data and partition once, then
each new server state, memory and message to a peer. Copies are named by their digests, so that a worker never uses
bytes that a path had before the run was interrupted. The clients' files return the same way, and their digests are
checked before the engine uses them: the run's folder remains the only record.

A failed transfer counts as the loss of one worker or the failure of one client only while the store answers. If it does
not answer, the run stops: otherwise clients that cannot be reached would be left out of the round, one after the other.
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

from shoal.core.durable import private_folder
from shoal.core.errors import FailureCause
from shoal.engine.cluster.copy_names import copy_of, folders_of_clients, server_file
from shoal.engine.cluster.pool_interface import Pool
from shoal.engine.cluster.remote_files import THREADS, RemoteFiles, RemoteFilesError, RemoteFilesGone, map_threads
from shoal.engine.messages.wire import Answer, Failed, FileRequest, RemoteRequest, Request, ShareKeys, Train, Trained
from shoal.engine.store.codec import StoreError, changed_error, file_digest, write_sealed
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.round_paths import WORK, RoundPaths, version
from shoal.engine.store.run_folder import LINEAGE, SETTINGS, RunFolder
from shoal.engine.workers.worker_processes import WorkerLost

HOST_FAILURES = (FailureCause.FILE, FailureCause.REMOTE_FILES)
"""Failures of one host, such as a full disk: another worker may do the work."""


@dataclass
class Copies:
    """The copies of a run's files in the store.

    Args:
        run: the run's folder.
        key: name of the run in the store.
    """

    run: RunFolder
    key: str
    data: str = ""
    partition: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Digests of the files that every request reads, by path in the run's folder."""
    put: dict[str, dict[str, Future[None]]] = field(default_factory=dict)
    """Writes to the store, finished or not, by folder and by path."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class RemoteFilesPool:
    """Workers that get copies of their files through a URL.

    Args:
        pool: the workers.
        url: fsspec URL that this machine and all workers reach (setting `workers.remote_files`).
    """

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._remote = RemoteFiles(url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="shoal copies")
        self._lock = threading.Lock()
        self._gone = ""
        self._runs: dict[Path, Copies] = {}
        self._states: dict[Path, tuple[object, str]] = {}

    @property
    def count(self) -> int:
        """See `shoal.engine.cluster.pool_interface.Pool`."""
        return self._pool.count

    @property
    def max_requests(self) -> int:
        """See `shoal.engine.cluster.pool_interface.Pool`."""
        return self._pool.max_requests

    def call(self, request: Request) -> Answer:
        """Have a free worker do a request whose files it cannot see; see `shoal.engine.cluster.pool_interface.Pool`.

        Raises:
            WorkerLost: the worker was lost, or a transfer to it or from it failed.
            RemoteFilesGone: a transfer failed, and the store does not answer any more.
            StoreError: a file of the run's folder is missing or changed.
        """
        assert not isinstance(request, ShareKeys), "privacy.sums needs the run's folder"
        run = RunFolder(request.run)
        try:
            copies, files = self._copies(run)
            files = files | self._send(copies, request)
        except RemoteFilesError as error:
            self._check_store(run, str(error))
            raise self._worker_lost(run, str(error)) from error
        # Two workers may train the same cohort, also one of an interrupted run: each has its own folder.
        back = f"runs/{copies.key}/back/{uuid.uuid4().hex}"
        remote_request = RemoteRequest(
            request, self._remote.url, copies.key, files, back, copies.data, copies.partition
        )
        try:
            answer = self._pool.call(remote_request)
            if isinstance(answer, Failed) and answer.cause in HOST_FAILURES:
                self._forget(copies, files)  # a copy may be missing or damaged: the next attempt writes it again
                if answer.cause == FailureCause.REMOTE_FILES:
                    self._check_store(run, answer.error)
                raise self._worker_lost(run, answer.error)
            if isinstance(answer, Trained):
                answer = self._fetch(RoundPaths(run.path, request.round), back, answer)
                for done in answer.clients.values():
                    if isinstance(done, Failed) and done.cause == FailureCause.REMOTE_FILES:
                        self._check_store(run, done.error)
                        break
        finally:
            if not self._gone:
                self._in_background(self._remote.drop_folder, back)
        return answer

    def close(self) -> None:
        """Remove the copies of runs if the store answers; data and partitions stay for other runs."""
        if self._gone:
            self._remote.give_up()
            self._threads.shutdown(wait=False, cancel_futures=True)
            return
        self._threads.shutdown(cancel_futures=True)
        for copies in self._runs.values():
            self._remote.drop_folder(f"runs/{copies.key}")

    def _check_store(self, run: RunFolder, why: str) -> None:
        """Check after a failed transfer that the store answers.

        Raises:
            RemoteFilesGone: it does not.
        """
        self._raise_if_gone()
        if not self._remote.answers():
            self._gone = (
                f"{why}, and it does not answer any more: restart it, then resume with `shoal run --resume {run.name}`"
            )
        self._raise_if_gone()

    def _raise_if_gone(self) -> None:
        """Raise at once if another thread has found that the store is gone.

        Raises:
            RemoteFilesGone: with the message of that thread.
        """
        if self._gone:
            raise RemoteFilesGone(self._gone)

    def _worker_lost(self, run: RunFolder, why: str) -> WorkerLost:
        return WorkerLost(
            f"{why}; if this persists, check the remote store and the workers' disks, then resume with "
            f"`shoal run --resume {run.name}`"
        )

    def _in_background(self, act: Callable[[str], None], path: str) -> None:
        with contextlib.suppress(RuntimeError):  # closed, and all copies of runs removed with it
            self._threads.submit(act, path)

    def _forget(self, copies: Copies, files: Mapping[str, str]) -> None:
        with copies.lock:
            copies.files = {}
            for path, digest in files.items():
                copy = copy_of(path, digest)
                copies.put.get(copy.rpartition("/")[0], {}).pop(copy, None)

    def _copies(self, run: RunFolder) -> tuple[Copies, dict[str, str]]:
        """Return the copies of a run and the digests of the files that every request reads, after writing these."""
        name = f"{run.name}-{hashlib.sha256(str(run.path).encode()).hexdigest()[:8]}"
        with self._lock:
            copies = self._runs.setdefault(run.path, Copies(run, name))
        with copies.lock:
            self._raise_if_gone()
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

    def _send(self, copies: Copies, request: FileRequest) -> dict[str, str]:
        """Write the files that a request reads to the store, unless they are there; return their digests by path.

        Raises:
            RemoteFilesError: a file cannot be written.
            StoreError: a file is missing, or has another digest.
        """
        sources = sources_of(request)
        wanted: dict[str, set[str]] = {folder: set() for folder in folders_of(request)}
        puts: list[Future[None]] = []
        with copies.lock:
            whole = {path: digest or self._digest(source) for path, (source, digest) in sources.items()}
            for path, digest in whole.items():
                copy = copy_of(path, digest)
                folder = copy.rpartition("/")[0]
                wanted.setdefault(folder, set()).add(copy)
                there = copies.put.setdefault(folder, {})
                if copy not in there or (there[copy].done() and there[copy].exception()):
                    to = f"runs/{copies.key}/{copy}"
                    there[copy] = self._threads.submit(self._put, sources[path][0], to, digest)
                puts.append(there[copy])
            self._drop_unused(copies, request, wanted)
        wait(puts)
        for put in puts:
            put.result()
        return whole

    def _drop_unused(self, copies: Copies, request: FileRequest, wanted: Mapping[str, set[str]]) -> None:
        """Remove earlier versions of the files of a request, and the messages of earlier rounds."""
        messages = f"{WORK}{request.round:04d}"
        for folder, needed in wanted.items():
            if folder == messages:  # other requests of the round may use other messages
                continue
            there = copies.put.get(folder, {})
            for copy in there.keys() - needed:
                there.pop(copy)
                self._in_background(self._remote.drop, f"runs/{copies.key}/{copy}")
        for folder in [folder for folder in copies.put if folder.startswith(WORK) and folder < messages]:
            del copies.put[folder]
            self._in_background(self._remote.drop_folder, f"runs/{copies.key}/{folder}")

    def _put(self, source: Path, path: str, digest: str) -> None:
        if digest_of(source) != digest:
            raise changed_error(source)
        self._remote.put(source, path)

    def _digest(self, path: Path) -> str:
        """Return the digest of a file, which is computed once for each version of the file."""
        newest = version(path)
        entry = self._states.get(path)
        if entry is None or entry[0] != newest:
            entry = self._states[path] = (newest, digest_of(path))
            for old in list(self._states)[:-8]:
                self._states.pop(old, None)
        return entry[1]

    def _fetch(self, paths: RoundPaths, back: str, answer: Trained) -> Trained:
        """Fetch the clients' files into the run's folder, and write the done-files last, as a local worker does."""
        private_folder(paths.run / "work")
        private_folder(paths.work)
        works = answer.finished
        digests = {name: digest for done in works.values() for name, digest in done.sha256.items()}
        failures = transfer_failures(
            works, lambda name: self._remote.get(f"{back}/{name}", paths.work / name, digests[name])
        )
        for client in works.keys() - failures.keys():
            write_sealed(paths.done(client), works[client].to_json(), sync=False)
        return Trained({**answer.clients, **failures})


def transfer_failures(works: Mapping[int, FinishedWork], transfer: Callable[[str], None]) -> dict[int, Failed]:
    """Transfer the files of clients' work; return the failures of the clients whose work is lost by it.

    Args:
        works: the work of clients.
        transfer: transfers the file with a name, which may belong to several clients.
    """
    errors: dict[str, RemoteFilesError] = {}

    def attempt(name: str) -> None:
        try:
            transfer(name)
        except RemoteFilesError as error:
            errors[name] = error

    map_threads(attempt, sorted({name for done in works.values() for name in done.sha256}))
    found = {}
    for client, done in works.items():
        lost = [errors[name] for name in done.sha256 if name in errors]
        if lost:
            found[client] = Failed(f"the work of client {client} is lost: {lost[0]}", FailureCause.REMOTE_FILES)
    return found


def digest_of(path: Path) -> str:
    """Return the hex digest of a file of the run's folder.

    Raises:
        StoreError: it is missing, or cannot be read.
    """
    try:
        return file_digest(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


def sources_of(request: FileRequest) -> dict[str, tuple[Path, str | None]]:
    """Return the files that a request reads and their digests as far as they are known, by path in the run's folder."""
    digests = {path: files.sha256.get(path) for files in request.clients for path in files.paths}
    sources: dict[str, tuple[Path, str | None]] = {
        path: (request.run / path, digests[path]) for path in sorted(digests)
    }
    if isinstance(request, Train):
        return sources
    return {**sources, server_file(request.round): (request.server, None)}


def folders_of(request: FileRequest) -> set[str]:
    """Return the folders of the clients of a request, in which files that it does not name are no longer needed."""
    return folders_of_clients(files.client for files in request.clients)
