"""Compare prepared data with their digest once on each machine, and again only when one of their files has changed.

Notes in `.verified`, beside the folder of the set, hold the size, time and inode of every file that was compared. To
read all bytes of a set before each run would take seconds.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.data.sets.by_client import is_by_client
from shoal.data.sets.prepared import Manifest, Prepared, check_file, open_prepared, read_manifest
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed


def open_verified(folder: Path, *, by_client: bool = False) -> Prepared:
    """Open a prepared set after comparing its files with its manifest.

    Args:
        folder: folder of the set.
        by_client: of a set that is stored by client, compare the files of each client only when they are first opened.

    Raises:
        DataError: files are missing, or differ from the manifest.
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
        DataError: it is missing, or differs from the manifest.
    """
    folder = path.parent.parent.parent
    name = path.relative_to(folder).as_posix()
    note = note_of(folder).with_suffix("") / f"{path.parent.name}-{path.stem}.json"
    files = {name: _state(path)}
    if not _is_noted(note, manifest, folder, files):
        check_file(folder, manifest, name)
        _note(note, manifest, folder, files)


def note_of(folder: Path) -> Path:
    """Return the file of the note that a set was compared; it is not in a folder that DVC tracks."""
    return folder.parent.parent / ".verified" / f"{folder.parent.name}-{folder.name}.json"


def _record(manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> dict[str, Any]:
    return {"digest": manifest.digest, "folder": str(folder.resolve()), "files": files}


def _is_noted(note: Path, manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> bool:
    with contextlib.suppress(StoreError):
        return bool(read_sealed(note) == _record(manifest, folder, files))
    return False


def _note(note: Path, manifest: Manifest, folder: Path, files: dict[str, list[int]]) -> None:
    with contextlib.suppress(ShoalError, OSError):  # without the note the set is compared again next time
        note.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(note, _record(manifest, folder, files), sync=False)


def _state(path: Path) -> list[int]:
    """Return size, time and inode of a file; zeros if it is missing."""
    try:
        state = path.stat()
    except OSError:
        return [0, 0, 0]
    return [state.st_size, state.st_mtime_ns, state.st_ino]
