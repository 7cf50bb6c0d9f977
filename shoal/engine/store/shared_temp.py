"""A user's own folders below the temporary folder that all users of a machine share.

A name such as `shoal-workers-anna` can be guessed. Another user who first puts a link or a folder there could make our
workers write, read and delete elsewhere. So the folder is made for its user alone (mode 0700). Before it is used, its
owner and its mode are checked, and that it is not a link. What another user put there is refused.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import tempfile
from pathlib import Path

from shoal.core.errors import ShoalError


class SharedTempError(ShoalError):
    """A folder below the temporary folder is not this user's own."""


def own_folder(name: str) -> Path:
    """Return this user's own folder below the temporary folder; make it if it is missing.

    Args:
        name: purpose of the folder; the user's name is appended.

    Raises:
        SharedTempError: something else has the name. OSError: the folder cannot be made.
    """
    path = Path(tempfile.gettempdir()) / f"{name}-{user_name()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o022:
        raise SharedTempError(
            f"{path} is a link or a file, or belongs to another user, or can be written by other users, and is not "
            "used: remove it, or set TMPDIR to another folder"
        )
    if mode & 0o077:
        path.chmod(0o700)
    return path


def user_name() -> str:
    """Return the user's name, or the user's number if it has no name (in containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def name_user() -> None:
    """Give a user without a name (in containers) the number as one: DVC and others end where they ask for it."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = str(os.geteuid())
