"""Repair of sets whose replacement was killed, from the leftovers beside them.

The first versions of Shoal removed the old version of a set before they renamed the new one. A kill in between left the
new version complete under a hidden name (`.photos.4711.tmp`), and no set or a part of one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from shoal.core.durable import before, leftovers, lock_if_free, put_in_place, restore, sync_tree
from shoal.core.errors import DataError
from shoal.data.sets.prepare import PLACES
from shoal.data.sets.prepared import Prepared, open_prepared
from shoal.data.sets.remedy import remedy
from shoal.data.sets.writing import lock_of


def repair_sets(store: Path) -> list[str]:
    """Restore sets whose replacement was interrupted, and remove leftovers beside complete ones.

    A set that a process is writing is left alone.

    Returns:
        A sentence for each restored set, and for each set with leftovers that cannot restore it.

    Raises:
        OSError: the store cannot be written.
    """
    sentences = []
    for folder in _interrupted(store):
        with lock_if_free(lock_of(folder)) as free:
            sentence = _repair(folder) if free else ""
        if sentence:
            sentences.append(sentence)
    return sentences


def damaged_sets(store: Path, *, verify: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the name of each damaged set of a store, and a sentence that says what to do.

    Args:
        store: the store.
        verify: read every byte; else only manifests and the shapes of arrays.
    """
    for place in PLACES:
        for folder in sorted((store / place).glob("[!.]*/")):
            try:
                open_prepared(folder, verify=verify)
            except DataError as error:
                yield folder.name, str(error)


def _interrupted(store: Path) -> list[Path]:
    """Return the folders of sets with leftovers of an interrupted replacement beside them."""
    found = set()
    for place in PLACES:
        for path in (store / place).glob(".*/"):
            end = ".old" if path.name.endswith(".old") else ".tmp"
            name = path.name.removeprefix(".").removesuffix(end).split(".")[0]
            folder = path.with_name(name) if name else path
            if path in leftovers(folder):
                found.add(folder)
    return sorted(found)


def _repair(folder: Path) -> str:
    """Repair one set, and return a sentence about it; empty if there was nothing to restore."""
    restored = restore(folder)
    left = leftovers(folder)
    if _whole(folder) is not None:
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return f"data set {folder.name!r} is back: its replacement was cut short" if restored else ""
    whole = [path for path in left if _whole(path, folder.name) is not None]
    if not whole:
        names = ", ".join(str(path) for path in left)
        return f"data set {folder.name!r} was never written completely, and {names} is not a set: {remedy(folder)}"
    newest = max(whole, key=lambda path: (path != before(folder), (path / "manifest.json").stat().st_mtime))
    sync_tree(newest)
    put_in_place(newest, folder)
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    m = open_prepared(folder).manifest
    return (
        f"data set {folder.name!r} is back: a kill had cut short its replacement. It has {m.train + m.test:,} samples "
        f"({m.source})"
    )


def _whole(folder: Path, name: str | None = None) -> Prepared | None:
    """Return the set in a folder if it has this name and every byte matches its manifest, else None."""
    with contextlib.suppress(DataError):
        prepared = open_prepared(folder, verify=True)
        if prepared.manifest.name == (name or folder.name):
            return prepared
    return None
