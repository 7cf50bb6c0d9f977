"""The name of the user, who may have none in containers."""

from __future__ import annotations

import getpass
import os


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
