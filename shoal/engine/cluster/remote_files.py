"""Files behind an fsspec URL that this machine and the workers' hosts all reach (setting `workers.remote_files`).

What lies there are copies, named by their digest where one is known (`shoal.engine.store.round_paths.copy_of`). Whoever
fetches one compares it with that digest before anybody sees it. What fails is tried again, since stores refuse a
request now and then, and are started again; after `PATIENCE` it is a `DepotError`, and the work that wanted the file
may be done again. How often and how long that is, is decided here alone: clients of stores try again too, each try of
ours anew, which adds up to minutes.
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
from shoal.engine.settings.addresses import masked, resolved
from shoal.engine.settings.run_settings import SettingsError
from shoal.engine.store.codec import PRIVATE, StoreError, file_digest

COMPLETE = "complete"
"""The file that is put last into a folder of data: without it the others may be missing."""
THREADS = 16
"""Files on their way at once: most of the time of a small file is waiting."""
PAUSES = (0.2, 1.0)
"""Seconds before the second and the third try of what failed; before any later one as many as before the third."""
PATIENCE = 20.0
"""Seconds for which a store may fail: as long as the head of a cluster may be away."""
LOOK = 5.0
"""Seconds in which a store that failed must answer, whatever it says, not to be called gone."""
STALLED, SLOWEST = 15.0, 100_000
"""Seconds that a file has to be put there, and bytes for which it has one second more. A store that is stopped takes
none, and the clients of stores have limits for what they wait for alone."""
ONE_TRY: dict[str, Any] = {"retries": {"total_max_attempts": 1}}
"""What has the client below the file system of `OF_S3` try once."""
OF_S3 = ("s3", "s3a")
WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Protocols of stores where a file needs no folder to lie in."""
LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Failures that another try will not mend."""

Item = TypeVar("Item")
Found = TypeVar("Found")


class DepotError(StoreError):
    """The store behind the URL failed at a file, or gave other bytes than were put there."""

    failure_cause = FailureCause.REMOTE_FILES


class DepotGone(ShoalError):
    """The store answers nobody any more; the run stops and can be resumed."""


class OtherBytes(Exception):
    """A file came back with other bytes than were put there."""


def side_by_side(act: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """`act` of each item, on some threads, in the order of the items; the first exception in that order is raised."""
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
        of_user = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
        options = {"config_kwargs": {**ONE_TRY, **of_user}} if protocol in OF_S3 else {}
        try:
            self.fs, root = fsspec.core.url_to_fs(resolved(url, "workers.remote_files"), **options)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"workers.remote_files: {url!r} cannot be used: {masked(str(error), url)}") from None
        if protocol in OF_S3:
            self.fs.retries = 1
        self.url, self.root, self._folders = url, root.rstrip("/"), protocol not in WITHOUT_FOLDERS
        self._failing: float | None = None
        self._left = threading.Event()

    def _tried(self, what: str, act: Callable[[], Found]) -> Found:
        """What `act` gives, tried again where it fails: for `PATIENCE`, but at least twice.

        Once the store has failed at anything for so long, and at nothing else succeeded, one try is enough.

        Raises:
            DepotError: it failed each time; names the store and the file.
        """
        first = time.monotonic()
        for number, pause in zip(count(), chain(PAUSES, repeat(PAUSES[-1])), strict=False):
            before, began = self._failing, time.monotonic()
            try:
                found = act()
            except Exception as error:  # every store has exceptions of its own
                if isinstance(error, (*LASTING, StoreError)):
                    self._failing = None
                    raise self._named(what, error) from self._cause(error)
                if isinstance(error, OtherBytes):
                    over = number == len(PAUSES)
                else:
                    self._failing = began if before is None else before
                    over = time.monotonic() - min(first, self._failing) > PATIENCE and (
                        number > 0 or before is not None
                    )
                if over or self._left.wait(pause):
                    raise self._named(what, error) from self._cause(error)
            else:
                self._failing = None
                return found
        raise AssertionError  # the last try returns or raises

    def answers(self) -> bool:
        """Whether the store says anything, be it that there is no such file; it is asked for some seconds."""
        end = time.monotonic() + LOOK
        while True:
            try:
                self.fs.invalidate_cache()
                self.fs.info(f"{self.root}/{COMPLETE}", **self._within(LOOK))
                return True
            except LASTING:
                return True
            except Exception:
                if time.monotonic() > end or self._left.wait(PAUSES[-1]):
                    return False

    def _within(self, seconds: float) -> dict[str, float]:
        """The option by which a file system ends what takes longer, where it has one."""
        return {"timeout": seconds} if getattr(self.fs, "async_impl", False) is True else {}

    def leave(self) -> None:
        """Have whoever tries something again give it up."""
        self._left.set()

    def _named(self, what: str, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        said = masked(str(error), self.url)
        why = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return DepotError(f"the depot {masked(self.url)} failed at {what}: {why}")

    def _cause(self, error: Exception) -> BaseException | None:
        """The exception itself, but for one whose words hold what is masked: they would reach logs with it."""
        if isinstance(error, StoreError):
            return error.__cause__
        return error if masked(str(error), self.url) == str(error) else None

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._tried(path, lambda: bool(self.fs.exists(f"{self.root}/{path}")))

    def put(self, source: Path, path: str) -> None:
        """Copy a file there.

        Raises:
            DepotError: it cannot be done.
        """
        there = f"{self.root}/{path}"

        def act() -> None:
            limit = self._within(STALLED + source.stat().st_size / SLOWEST)
            try:
                self.fs.put_file(str(source), there, **limit)
            except Exception:  # no such folder yet, where there are folders; each store says so in its own way
                if not self._folders:
                    raise
                self.fs.makedirs(there.rpartition("/")[0], exist_ok=True)
                self.fs.put_file(str(source), there, **limit)

        self._tried(path, act)

    def get(self, path: str, target: Path, sha256: str | None = None) -> None:
        """Copy a file from there; whoever reads `target` sees all of it or nothing.

        Args:
            path: of the file there.
            target: where it is wanted.
            sha256: hex digest that it must have, where one is known.

        Raises:
            DepotError: it is not there, cannot be fetched, or has another digest.
        """
        scratch = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")

        def act() -> None:
            try:
                self.fs.get_file(f"{self.root}/{path}", str(scratch))
                if sha256 is not None and file_digest(scratch) != sha256:
                    raise OtherBytes(f"it came back with other bytes than the {sha256[:12]} that were put there")
                scratch.chmod(PRIVATE)
                scratch.replace(target)
            finally:
                scratch.unlink(missing_ok=True)

        target.parent.mkdir(parents=True, exist_ok=True)
        self._tried(path, act)

    def put_folder(self, source: Path, path: str) -> None:
        """Copy the files of a folder there, unless they are all there."""
        if self.has(f"{path}/{COMPLETE}"):
            return
        names = sorted(p.name for p in source.iterdir() if p.is_file())
        side_by_side(lambda name: self.put(source / name, f"{path}/{name}"), names)
        complete = f"{path}/{COMPLETE}"
        self._tried(complete, lambda: self.fs.pipe_file(f"{self.root}/{complete}", "\n".join(names).encode()))

    def get_folder(self, path: str, target: Path) -> None:
        """Copy such a folder from there, unless it is here."""
        if target.is_dir():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
        complete = f"{path}/{COMPLETE}"
        try:
            listed = self._tried(complete, lambda: self.fs.cat_file(f"{self.root}/{complete}"))
            names = listed.decode(errors="replace").splitlines()
            for name in names:
                if Path(name).name != name:
                    raise StoreError(f"the depot {masked(self.url)} names {name[:60]!r} in {path}: that is no file")
            side_by_side(lambda name: self.get(f"{path}/{name}", scratch / name), names)
            # Another process of this host may have been faster.
            with contextlib.suppress(OSError):
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def drop(self, path: str) -> None:
        """Remove a file; a copy that stays behind does no harm."""
        with contextlib.suppress(Exception):
            self.fs.rm_file(f"{self.root}/{path}")

    def drop_folder(self, path: str) -> None:
        """Remove a folder with all that is in it, likewise."""
        with contextlib.suppress(Exception):
            self.fs.rm(f"{self.root}/{path}", recursive=True)
