"""Files and folders that are replaced whole: a kill or a power cut at any moment leaves the old one or the new one.

What is new is written beside its place, under a hidden name, and waited for until it is on the disk; then it takes the
place, and what was there before is removed last. A kill between the two renames leaves the name free until `restore`.

    .photos.4711.140.tmp    being written
    .photos.old             the version before, not yet removed
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What fsync of a folder answers on file systems that have none."""
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)
RETRY_SECONDS = 0.05
"""Pause before a lock is tried again."""
REPLACE_ATTEMPTS = 100
"""So often another process may put something in the same place between two steps of ours."""


def write_file(path: Path, content: bytes, *, sync: bool = True, sync_name: bool = True, mode: int = 0o666) -> None:
    """Replace a file; a reader sees the old bytes or the new ones.

    Args:
        path: the final place; its folder must exist.
        content: the bytes.
        sync: also wait until the bytes are on the disk.
        sync_name: and until the name is; without it a power cut may bring the old file back, whole.
        mode: who may read and write it, as far as the umask allows.

    Raises:
        OSError: the disk is full, or the place cannot be written. The old file is as it was.
    """
    with (
        replacing(path) as scratch,
        open(scratch, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file,
    ):
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync and sync_name:
        sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the hidden name of a file to write, which then takes the place of another; errors as of `write_file`."""
    # Two threads of a process may write the same file: two copies of a cohort, on two threads of a Dask worker.
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield scratch
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def new_version(folder: Path) -> Iterator[Path]:
    """Replace a folder by what the block writes.

    Args:
        folder: the final place; whatever is there stays until the new version is complete.

    Yields:
        An empty folder to write to. Where the block raises, it is removed and `folder` is as it was.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        yield scratch
        sync_tree(scratch)
        put_in_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def put_in_place(scratch: Path, folder: Path) -> None:
    """Give a complete folder its final name; what had the name is removed when the new one is safe there.

    Args:
        scratch: the new version, in the same folder as the old one, its bytes on the disk.
        folder: the final place.

    Raises:
        OSError: the place cannot be written.
    """
    for _ in range(REPLACE_ATTEMPTS):
        try:
            if folder.exists():
                if before(folder).exists():  # of a replacement that was complete
                    shutil.rmtree(before(folder))
                os.rename(folder, before(folder))
            os.rename(scratch, folder)
        except OSError as error:
            if error.errno in OCCUPIED:  # another process put one there just now
                continue
            raise
        sync_folder(folder.parent)
        shutil.rmtree(before(folder), ignore_errors=True)
        return
    raise OSError(errno.EBUSY, "other processes replace it all the time", str(folder))


def before(folder: Path) -> Path:
    """Return where the version before waits until the new one is safe."""
    return folder.with_name(f".{folder.name}.old")


def restore(folder: Path) -> bool:
    """Bring back the version before, where a kill came when the name was free; whether there was one."""
    if folder.exists() or not before(folder).is_dir():
        return False
    try:
        os.rename(before(folder), folder)
    except OSError:  # the process that replaces it, or another reader, was faster
        return folder.exists()
    sync_folder(folder.parent)
    return True


def leftovers(folder: Path) -> list[Path]:
    """Return what replacements of a folder left beside it when they were killed: those of processes that have ended.

    Only a process that holds the lock of the folder may use or remove them.
    """
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.(?P<pid>\d+)(\.\d+)?\.tmp")
    left = [before(folder)] if before(folder).is_dir() else []
    for path in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and path.is_dir() and not _alive(int(match["pid"])):
            left.append(path)
    return left


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def private_folder(folder: Path) -> None:
    """Make a folder, and missing ones above it, that only the user may open; an existing one becomes private too."""
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        with contextlib.suppress(OSError):  # it is another user's, or its file system has no modes
            folder.chmod(0o700)


def sync_tree(folder: Path) -> None:
    """Wait until all files of a folder, and their names, are on the disk."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(place, name))
        sync_folder(Path(place))


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can say so."""
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock that one process has at a time; wait for it where another has it, and say so on standard error.

    Args:
        lock: the file that stands for it; it holds the number of the process that had it last, and stays.
        what: what is locked, for the sentence, such as "data set 'photos'".

    Raises:
        OSError: the file cannot be written.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        if not _taken(file.fileno()):
            _say(f"{what} is being written by another process (pid {owner_of(lock)}): waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        _sign(file)
        yield


@contextlib.contextmanager
def lock_if_free(lock: Path, patience: float = 0) -> Iterator[bool]:
    """Hold a lock where nobody else does; yields whether it is ours.

    Args:
        lock: as of `locked`.
        patience: seconds for which a lock that another process holds is tried again.
    """
    deadline = time.monotonic() + patience
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+") as file:
        while not (ours := _taken(file.fileno())) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
        if ours:
            _sign(file)
        yield ours


def owner_of(lock: Path) -> str:
    """Return the number of the process that had a lock last."""
    return lock.read_text()[:20].strip() or "unknown"


def _sign(file: IO[str]) -> None:
    """Write the number of this process to the file of a lock that it holds."""
    file.seek(0)
    file.truncate()
    file.write(str(os.getpid()))
    file.flush()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
