"""Prepared data are compared with their digest once on each machine, and again only when a file of theirs has changed.

What was compared is remembered in `.verified` beside the folder that the set lies in, by size, time and number of every
file: reading all bytes of a set before each run would cost seconds, and looking at its files costs none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.data.by_client import is_by_client
from shoal.data.prepared import Manifest, Prepared, check_file, open_prepared, read_manifest
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed


def open_verified(folder: Path, *, by_client: bool = False) -> Prepared:
    """Open a prepared set whose bytes are those of its manifest.

    Args:
        folder: of the set.
        by_client: compare the files of a client of a set that is stored by client when they are first opened, and open
            no other client's; else all are compared now.

    Raises:
        DataError: files are missing, or not those of the manifest.
    """
    if by_client and is_by_client(read_manifest(folder).files):
        return open_prepared(folder, check=check_once)
    prepared = open_prepared(folder)
    files = {str(path.relative_to(folder)): _state(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    if not _is_noted(note_of(folder), prepared.manifest, folder, files):
        prepared = open_prepared(folder, verify=True)
        _note(note_of(folder), prepared.manifest, folder, files)
    return prepared


def check_once(manifest: Manifest, path: Path) -> None:
    """Compare a client's file with the manifest, unless that was done before and the file has not changed.

    Raises:
        DataError: it is missing, or another one.
    """
    folder = path.parent.parent.parent
    name = path.relative_to(folder).as_posix()
    note = note_of(folder).with_suffix("") / f"{path.parent.name}-{path.stem}.json"
    files = {name: _state(path)}
    if not _is_noted(note, manifest, folder, files):
        check_file(folder, manifest, name)
        _note(note, manifest, folder, files)


def note_of(folder: Path) -> Path:
    """Return the file that remembers that a set was compared: not beside the set itself, where DVC would see it."""
    return folder.parent.parent / ".verified" / f"{folder.parent.name}-{folder.name}.json"


def _record(manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> dict[str, Any]:
    return {"digest": manifest.digest, "folder": str(folder.resolve()), "files": files}


def _is_noted(note: Path, manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> bool:
    with contextlib.suppress(StoreError):
        return bool(read_sealed(note) == _record(manifest, folder, files))
    return False


def _note(note: Path, manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> None:
    # Where nothing can be written the set is compared again next time.
    with contextlib.suppress(ShoalError, OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(note, _record(manifest, folder, files), sync=False)


def _state(path: Path) -> list[int]:
    """Return size, time and number of a file; zeros where it is missing."""
    try:
        state = path.stat()
    except OSError:
        return [0, 0, 0]
    return [state.st_size, state.st_mtime_ns, state.st_ino]
