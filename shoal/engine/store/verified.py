"""Prepared data are compared with their digest once on each machine, and again only when a file of theirs has changed.

What was compared is remembered in `.verified` beside the folder that the set lies in, by size, time and number of every
file: reading all bytes of a set before each run would cost seconds, and looking at its files costs none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.data.prepared import Prepared, open_prepared
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed


def open_verified(folder: Path) -> Prepared:
    """Open a prepared set whose bytes are those of its manifest.

    Raises:
        DataError: files are missing, or not those of the manifest.
    """
    prepared = open_prepared(folder)
    record = {"digest": prepared.manifest.digest, "folder": str(folder.resolve()), "files": _files(folder)}
    note = note_of(folder)
    with contextlib.suppress(StoreError):
        if read_sealed(note) == record:
            return prepared
    prepared = open_prepared(folder, verify=True)
    # Where nothing can be written the set is compared again next time.
    with contextlib.suppress(ShoalError, OSError):
        note.parent.mkdir(exist_ok=True)
        write_sealed(note, record, sync=False)
    return prepared


def note_of(folder: Path) -> Path:
    """Return the file that remembers that a set was compared: not beside the set itself, where DVC would see it."""
    return folder.parent.parent / ".verified" / f"{folder.parent.name}-{folder.name}.json"


def _files(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            state = path.stat()
            found[path.name] = [state.st_size, state.st_mtime_ns, state.st_ino]
    return found
