"""What other users of the machine can read: nothing that Shoal writes, but the project's own files as the user has it.

Shoal writes under the umask 077. A umask that keeps other users out already, such as 027 of a team, stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

UMASK_VARIABLE = "SHOAL_UMASK"
"""The umask that the user has, for the processes of this one."""
PRIVATE_UMASK = 0o077
OTHERS = 0o007


def write_privately() -> int:
    """Have this process and those that it starts write for their user alone; return the umask before."""
    before = os.umask(PRIVATE_UMASK)
    os.environ.setdefault(UMASK_VARIABLE, f"{before:03o}")
    if before & OTHERS == OTHERS:
        os.umask(before)
    return before


def user_umask() -> int:
    """Return the umask for files of the project, as `subprocess` takes it; -1: the one that this process has."""
    return int(os.environ.get(UMASK_VARIABLE, "-1"), 8)


@contextlib.contextmanager
def project_files() -> Iterator[None]:
    """Write under the user's own umask within this context."""
    umask = user_umask()
    if umask < 0:
        yield
        return
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Write for the user alone within this context; it is also a decorator."""
    before = write_privately()
    try:
        yield
    finally:
        os.umask(before)


def make_cache(root: Path) -> None:
    """Make the cache of a DVC repository, which DVC would make under the umask of the user."""
    if (root / ".dvc").is_dir():
        with contextlib.suppress(OSError):  # it is there, or somewhere else
            (root / ".dvc" / "cache").mkdir(mode=0o700)
