"""Paths of folders in records: relative to the home, so that a home can be moved or restored."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.engine.settings import places

RUNS = "runs"


def stored_path(folder: Path) -> str:
    """Return the path of a folder for a record: relative to the home if it lies below it, else absolute."""
    home = places.home()
    absolute = Path(os.path.abspath(folder))
    for place, root in ((absolute, home), (absolute.resolve(), home.resolve())):
        if place.is_relative_to(root):
            return place.relative_to(root).as_posix()
    return str(absolute.resolve())


def located(folder: str, run: Path) -> Path:
    """Return the folder whose path is in the record of a run.

    Args:
        folder: the path in the record; an absolute one lies outside every home.
        run: the run's folder, whose own home is searched before SHOAL_HOME.

    Returns:
        The folder, which may be missing.
    """
    recorded = Path(folder)
    homes = [places.home()]
    if run.parent.name == RUNS:
        homes.insert(0, run.parent.parent)
    return next((home / recorded for home in homes if (home / recorded).exists()), homes[-1] / recorded)
