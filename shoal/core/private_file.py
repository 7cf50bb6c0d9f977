"""Files that hold a secret: only their user may read or write them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from shoal.core.durable import private_folder
from shoal.core.errors import ShoalError

MAX_BYTES = 1 << 16
"""Most bytes of such a file."""
OTHERS_READ_OR_WRITE = 0o077


class PrivateFileError(ShoalError):
    """A private file is unreadable, or open to other users."""


def read_private(path: Path) -> str | None:
    """Return the text of a file after checking that it is the user's own.

    Args:
        path: the file.

    Returns:
        The text; None if the file is missing.

    Raises:
        PrivateFileError: it is a link, not a file, another user's, open to others, too long, or not text.
    """
    try:
        # Without blocking, in case that somebody put a pipe there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise PrivateFileError(f"{path} is a link, expected a file of yours: put the file itself there") from None
        raise PrivateFileError(f"{path} cannot be read ({error.strerror}): correct its permissions") from error
    with open(descriptor, "rb") as file:
        if wrong := _wrong(path, os.fstat(descriptor)):
            raise PrivateFileError(wrong)
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise PrivateFileError(f"{path} has more than {MAX_BYTES} bytes: remove it, or put the right file there")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise PrivateFileError(f"{path} is not text in UTF-8: write it again, or remove it") from None


def _wrong(path: Path, about: os.stat_result) -> str | None:
    """Return why an open file cannot be trusted; None if it can."""
    if not stat.S_ISREG(about.st_mode):
        return f"{path} is not a regular file: remove it"
    if about.st_uid != os.geteuid():
        return f"{path} belongs to another user (id {about.st_uid}), and is not used: remove it"
    if about.st_mode & OTHERS_READ_OR_WRITE:
        return f"{path} is open to others, and holds a secret: remove it, and a new one is made"
    return None


def owner_only(path: str, flags: int) -> int:
    """Open a file for its user alone: an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def make_private(path: Path, text: str) -> None:
    """Write a file that only its user can read, unless it exists; a reader sees the whole file or none.

    Its folder becomes private too.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    private_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
