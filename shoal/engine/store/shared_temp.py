"""Folders among everybody's temporary files, which anybody could have put there first.

A name such as `shoal-cache-anna` is known beforehand. Another user who puts a link or a folder there could have our
workers write, read and delete where they wish. So such a folder is made for its user alone (mode 0700), and its owner,
its mode and that it is no link are checked before it is used. Where another user has the name, another place is taken.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import getpass
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path


def own_folder(name: str) -> Path:
    """Return this user's folder of a name among the temporary files, made where it is missing; nobody else can use it.

    Args:
        name: what the folder is for; the user's name follows.

    Raises:
        OSError: no folder can be made among the temporary files.
    """
    path = Path(tempfile.gettempdir()) / f"{name}-{user_name()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    why = why_not_own(path)
    if why is None:
        return path
    place = _other_folder(path, why)
    if why_not_own(place) is not None:  # somebody removed it, and perhaps took its name
        _other_folder.cache_clear()
        place = _other_folder(path, why)
    return place


def user_name() -> str:
    """Return the user's name, or the number where nobody knows the name (in containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


@functools.lru_cache(64)
def _other_folder(path: Path, why: str) -> Path:
    """Make a folder for this process alone, in place of one that is not its user's, and remove it when it ends."""
    place = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    warnings.warn(f"{path} {why}: this process uses {place} in its place", stacklevel=3)
    return place


def why_not_own(path: Path) -> str | None:
    """Return why a folder cannot be trusted, as the end of a sentence; None: it is this user's alone.

    A folder of this user that others may look into is closed to them.
    """
    try:
        status = path.lstat()
    except OSError as error:
        return f"cannot be looked at ({error.strerror or error})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if status.st_uid != os.geteuid():
        return f"belongs to another user (number {status.st_uid})"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return "could be written by others, who may have put something there"
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    return None
