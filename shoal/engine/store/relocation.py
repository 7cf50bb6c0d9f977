"""Folders of a home as records keep them: relative to it, so that a home can be moved or restored."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.engine.settings import places

RUNS = "runs"


def stored_path(folder: Path) -> str:
    """Return a folder as a record keeps it: relative to the home where it lies below it, else absolute."""
    home = places.home()
    absolute = Path(os.path.abspath(folder))
    for place, root in ((absolute, home), (absolute.resolve(), home.resolve())):
        if place.is_relative_to(root):
            return place.relative_to(root).as_posix()
    return str(absolute.resolve())


def located(folder: str, run: Path) -> Path:
    """Return where a folder lies that the record of a run names.

    Args:
        folder: as the record keeps it; an absolute one lies outside every home.
        run: the run's folder. What lies below its own home is preferred to what SHOAL_HOME names.

    Returns:
        The folder, which may be missing.
    """
    recorded = Path(folder)
    homes = homes_of(run)
    return next((home / recorded for home in homes if (home / recorded).exists()), homes[-1] / recorded)


def homes_of(run: Path) -> list[Path]:
    """Return the home that a run lies in, where it lies in one, and the one in use."""
    if run.parent.name == RUNS:
        return [run.parent.parent, places.home()]
    return [places.home()]
