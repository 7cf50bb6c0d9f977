"""Folders of a home as records keep them: relative to it, so that a home can be moved, mounted elsewhere or restored.

Records of earlier versions hold absolute paths. Where the home was moved since, these folders are looked for below the
present home.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.engine.settings import places

RUNS = "runs"
HOME_FOLDERS = ("data", RUNS)
"""Folders of a home that hold what records name."""
RECORDS = ("manifest.json", "partition.json")
"""The files of a data set, and of a partition, that hold its digest."""


def stored_path(folder: Path) -> str:
    """Return a folder as a record keeps it: relative to the home where it lies below it, else absolute."""
    home = places.home()
    absolute = Path(os.path.abspath(folder))
    for place, root in ((absolute, home), (absolute.resolve(), home.resolve())):
        if place.is_relative_to(root):
            return place.relative_to(root).as_posix()
    return str(absolute.resolve())


def located(folder: str, digest: str, run: Path) -> Path:
    """Return where a folder lies that the record of a run names.

    Args:
        folder: as the record keeps it.
        digest: of what is in it.
        run: the run's folder. What lies below its own home is preferred to what SHOAL_HOME names.

    Returns:
        The folder, which may be missing.
    """
    recorded = Path(folder)
    homes = homes_of(run)
    if not recorded.is_absolute():
        return next((home / recorded for home in homes if (home / recorded).exists()), homes[-1] / recorded)
    if any(recorded.is_relative_to(home) for home in homes):
        return recorded
    for home in homes:
        for tail in _tails(recorded):
            if _digest(home / tail) == digest:
                return home / tail
    return recorded


def homes_of(run: Path) -> list[Path]:
    """Return the home that a run lies in, where it lies in one, and the one in use."""
    if run.parent.name == RUNS:
        return [run.parent.parent, places.home()]
    return [places.home()]


def _tails(path: Path) -> Iterator[Path]:
    """Yield what a path may be relative to its home, the longest first."""
    for start, part in enumerate(path.parts):
        if part in HOME_FOLDERS:
            yield Path(*path.parts[start:])


def _digest(folder: Path) -> str | None:
    """Return the digest that the set or the partition in a folder has by its own record; None where there is none."""
    for name in RECORDS:
        try:
            return str(json.loads((folder / name).read_text())["digest"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None
