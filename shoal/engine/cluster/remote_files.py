"""Files behind an fsspec URL that this machine and the workers' hosts all reach (setting `workers.remote_files`).

The files are copies, named by their digest if it is known (`shoal.engine.cluster.copy_names.copy_of`). A reader
compares the copy with that digest before any other code sees it. A failed transfer is repeated, since stores now and
then refuse a request or restart; after `MAX_FAILING_SECONDS` it raises a `RemoteFilesError`, and the work that needed
the file may be done again. Only this module decides how often and how long to retry: the clients of stores retry on
their own, for each of our attempts, which adds up to minutes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from shoal.core.errors import FailureCause, ShoalError
from shoal.engine.settings.addresses import fill_variables, masked
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.codec import PRIVATE, StoreError, file_digest

COMPLETE = "complete"
"""The file that is written last into a folder of data: without it other files may be missing."""
THREADS = 16
"""Files to transfer at once: the time of a small file is mostly waiting."""
PAUSE_SECONDS = (0.2, 1.0)
"""Pauses before the second and the third attempt; later attempts have the last pause."""
MAX_FAILING_SECONDS = 20.0
"""Time for which a store may fail: as long as the scheduler of a cluster may be away."""
ANSWER_SECONDS = 5.0
"""Time in which a failing store must answer anything at all, or else it counts as gone."""
MIN_PUT_SECONDS = 15.0
"""Time that any file has to be written to the store; clients of stores have no such limit of their own."""
MIN_BYTES_PER_SECOND = 100_000
"""A larger file has further time at this rate."""
ONE_TRY: dict[str, Any] = {"retries": {"total_max_attempts": 1}}
"""Options with which the client of an S3 store makes one attempt."""
S3_PROTOCOLS = ("s3", "s3a")
PROTOCOLS_WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Protocols of stores whose files need no folder."""
PERMANENT_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Failures that another attempt does not mend."""

Item = TypeVar("Item")
Found = TypeVar("Found")


class RemoteFilesError(StoreError):
    """The store behind the URL failed at a file, or returned other bytes than were written."""

    failure_cause = FailureCause.REMOTE_FILES


class RemoteFilesGone(ShoalError):
    """The store does not answer any more; the run stops and can be resumed."""


class OtherBytes(Exception):
    """A file was read with other bytes than were written."""


def map_threads(act: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """Return `act` of each item, in their order, called on several threads; raise the first exception in that order."""
    listed = list(items)
    if len(listed) < 2:
        return [act(item) for item in listed]
    with ThreadPoolExecutor(min(THREADS, len(listed)), thread_name_prefix="shoal files") as threads:
        return list(threads.map(act, listed))


class RemoteFiles:
    """Files under an fsspec URL, by relative path.

    Args:
        url: such as s3://bucket/shoal or file:///mnt/shared/shoal; `${NAME}` of an environment variable is replaced.

    Raises:
        SettingsError: no such protocol, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        protocol = url.partition("://")[0]
        options: dict[str, Any] = {}
        if protocol in S3_PROTOCOLS:
            configured = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
            options = {"config_kwargs": {**ONE_TRY, **configured}}
        try:
            self.fs, root = fsspec.core.url_to_fs(fill_variables(url, "workers.remote_files"), **options)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"workers.remote_files: {url!r} cannot be used: {masked(str(error), url)}") from None
        if protocol in S3_PROTOCOLS:
            self.fs.retries = 1
        self.url = url
        self.root = root.rstrip("/")
        self._has_folders = protocol not in PROTOCOLS_WITHOUT_FOLDERS
        self._failing_since: float | None = None
        self._given_up = threading.Event()

    def _retry(self, what: str, act: Callable[[], Found]) -> Found:
        """Return what `act` returns; call it again while it fails: for `MAX_FAILING_SECONDS`, but at least twice.

        Once the store has failed at everything for so long, one attempt is enough.

        Raises:
            RemoteFilesError: every attempt failed; names the store and the file.
        """
        first = time.monotonic()
        for number, pause in zip(count(), chain(PAUSE_SECONDS, repeat(PAUSE_SECONDS[-1])), strict=False):
            failing_before = self._failing_since
            began = time.monotonic()
            try:
                found = act()
            except Exception as error:  # every store has exceptions of its own
                if isinstance(error, (*PERMANENT_ERRORS, StoreError)):
                    self._failing_since = None
                    last = True
                elif isinstance(error, OtherBytes):
                    last = number == len(PAUSE_SECONDS)
                else:
                    self._failing_since = began if failing_before is None else failing_before
                    failing = time.monotonic() - min(first, self._failing_since)
                    last = failing > MAX_FAILING_SECONDS and (number > 0 or failing_before is not None)
                if last or self._given_up.wait(pause):
                    raise self._store_error(what, error) from self._cause(error)
            else:
                self._failing_since = None
                return found
        raise AssertionError  # the last attempt returns or raises

    def answers(self) -> bool:
        """Return whether the store answers within `ANSWER_SECONDS`, even if only that there is no such file."""
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self.fs.invalidate_cache()
                self.fs.info(f"{self.root}/{COMPLETE}", **self._time_limit(ANSWER_SECONDS))
                return True
            except PERMANENT_ERRORS:
                return True
            except Exception:
                if time.monotonic() > end or self._given_up.wait(PAUSE_SECONDS[-1]):
                    return False

    def _time_limit(self, seconds: float) -> dict[str, float]:
        """Return the option with which a file system ends a longer request; empty if it has none."""
        if getattr(self.fs, "async_impl", False) is True:
            return {"timeout": seconds}
        return {}

    def give_up(self) -> None:
        """End every wait for another attempt."""
        self._given_up.set()

    def _store_error(self, what: str, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        reason = ": ".join(part for part in (type(error).__name__, masked(str(error), self.url)) if part)
        return RemoteFilesError(f"the remote store {masked(self.url)} failed at {what}: {reason}")

    def _cause(self, error: Exception) -> BaseException | None:
        """Return the exception itself; None if its message holds a secret, which would reach logs with it."""
        if isinstance(error, StoreError):
            return error.__cause__
        if masked(str(error), self.url) != str(error):
            return None
        return error

    def has(self, path: str) -> bool:
        """Return whether the store has a file."""
        return self._retry(path, lambda: bool(self.fs.exists(f"{self.root}/{path}")))

    def put(self, source: Path, path: str) -> None:
        """Copy a file to the store.

        Raises:
            RemoteFilesError: it cannot be written.
        """
        there = f"{self.root}/{path}"

        def act() -> None:
            limit = self._time_limit(MIN_PUT_SECONDS + source.stat().st_size / MIN_BYTES_PER_SECOND)
            try:
                self.fs.put_file(str(source), there, **limit)
            except Exception:  # the folder may be missing; every store has exceptions of its own
                if not self._has_folders:
                    raise
                self.fs.makedirs(there.rpartition("/")[0], exist_ok=True)
                self.fs.put_file(str(source), there, **limit)

        self._retry(path, act)

    def get(self, path: str, target: Path, sha256: str | None = None) -> None:
        """Copy a file from the store; a reader of `target` sees the whole file or none.

        Args:
            path: of the file in the store.
            target: path of the copy.
            sha256: hex digest that it must have; None: not known.

        Raises:
            RemoteFilesError: it is missing, cannot be fetched, or has another digest.
        """
        scratch = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")

        def act() -> None:
            try:
                self.fs.get_file(f"{self.root}/{path}", str(scratch))
                if sha256 is not None and file_digest(scratch) != sha256:
                    raise OtherBytes(f"its digest is not {sha256[:12]}, as when it was written")
                scratch.chmod(PRIVATE)
                scratch.replace(target)
            finally:
                scratch.unlink(missing_ok=True)

        target.parent.mkdir(parents=True, exist_ok=True)
        self._retry(path, act)

    def put_folder(self, source: Path, path: str) -> None:
        """Copy the files of a folder, at any depth, to the store, unless it has them all."""
        if self.has(f"{path}/{COMPLETE}"):
            return
        names = sorted(p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file())
        map_threads(lambda name: self.put(source / name, f"{path}/{name}"), names)
        complete = f"{path}/{COMPLETE}"
        self._retry(complete, lambda: self.fs.pipe_file(f"{self.root}/{complete}", "\n".join(names).encode()))

    def get_folder(self, path: str, target: Path) -> None:
        """Copy a folder of files from the store, unless it exists here."""
        if target.is_dir():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        complete = f"{path}/{COMPLETE}"
        try:
            listed = self._retry(complete, lambda: self.fs.cat_file(f"{self.root}/{complete}"))
            names = listed.decode(errors="replace").splitlines()
            for name in names:
                if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                    raise StoreError(
                        f"the remote store {masked(self.url)} lists {name[:60]!r} in {path}, which is not a file name: "
                        "remove that folder from the store"
                    )
            map_threads(lambda name: self.get(f"{path}/{name}", scratch / name), names)
            # Another process of this host may have been faster.
            with contextlib.suppress(OSError):
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def drop(self, path: str) -> None:
        """Remove a file if possible; a copy that remains does no harm."""
        with contextlib.suppress(Exception):
            self.fs.rm_file(f"{self.root}/{path}")

    def drop_folder(self, path: str) -> None:
        """Remove a folder and its files if possible."""
        with contextlib.suppress(Exception):
            self.fs.rm(f"{self.root}/{path}", recursive=True)
