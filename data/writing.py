"""One process at a time writes a set of the store: others wait, and say so."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from shoal.core.durable import leftovers, locked, restore
from shoal.core.errors import DataError, brief


class SetUnchanged(DataError):
    """A set is whole and stays as it is."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes a set; wait for another one that does, and say so.

    Whoever appends to a set reads it within the block too, so that of two that append at once neither loses what the
    other brought. What a killed process left beside the set is removed once the block has written it, or has found it
    whole (`SetUnchanged`).

    Args:
        folder: the set's.

    Raises:
        DataError: the store cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(folder), f"data set {folder.name!r}"))
        except OSError as error:
            raise DataError(f"the data set could not be written to {folder}: {brief(error)}") from error
        restore(folder)
        try:
            yield
        except SetUnchanged:
            remove_leftovers(folder)
            raise
        remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left beside a set that is there."""
    if folder.exists():
        for left in leftovers(folder):
            shutil.rmtree(left, ignore_errors=True)


def lock_of(folder: Path) -> Path:
    """The file that stands for the right to write a set: not beside the set, where git and DVC would see it."""
    return folder.parent.parent / ".locks" / f"{folder.parent.name}-{folder.name}"
