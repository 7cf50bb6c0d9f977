"""The order in which the runs of a folder were started."""

from __future__ import annotations

from pathlib import Path

STAMP = len("20260131-120000")
"""Characters of the time with which the name of a run begins."""


def in_order(runs: Path, pattern: str = "*") -> list[Path]:
    """Return the settings files of the runs in a folder, in the order in which the runs were started, by their names.

    Of runs of the same second the times of the files decide.

    Args:
        runs: the folder.
        pattern: glob pattern of the names of runs to include.
    """
    files = runs.glob(f"{pattern}/settings.yaml")
    return sorted(files, key=lambda path: (path.parent.name[:STAMP], path.stat().st_mtime_ns, path.parent.name))
