"""Writing of sets in the store: one process at a time writes a set; others wait, and say so."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from shoal.core.durable import leftovers, locked, restore
from shoal.core.errors import DataError, short_text
from shoal.data.sets.intake_notes import names_file


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes a set; wait for another one that does, and say so.

    A process that appends to a set reads it within the block too, so that two that append at once lose nothing. The
    leftovers of a killed process are removed after the block.

    Args:
        folder: of the set.

    Raises:
        DataError: the store cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(lock_of(folder), f"data set {folder.name!r}"))
        except OSError as error:
            raise DataError(f"the data set could not be written to {folder}: {short_text(error)}") from error
        restore(folder)
        try:
            yield
        finally:
            remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the leftovers of killed processes beside an existing set."""
    if folder.exists():
        for left in leftovers(folder):
            shutil.rmtree(left, ignore_errors=True)
        for names in folder.parent.glob(f".{names_file(folder).name}.*.tmp"):
            names.unlink(missing_ok=True)


def link(source: str | Path, target: str | Path) -> None:
    """Link a file of a set, which takes no space, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def lock_of(folder: Path) -> Path:
    """Return the lock file of a set; it does not lie beside the set, where git and DVC would see it."""
    return folder.parent.parent / ".locks" / f"{folder.parent.name}-{folder.name}"
