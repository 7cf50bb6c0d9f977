"""The order in which the runs of a folder were started."""

from __future__ import annotations

from pathlib import Path

ORDER = ".order"
"""The file, among the runs, that says in which order they were started."""


def in_order(runs: Path, pattern: str = "*") -> list[Path]:
    """Return the settings files of the runs in a folder, in the order in which the runs were started there.

    Names begin with the time, and a clock that was set back makes smaller ones. The file `ORDER` has a line a run, in
    the order in which their folders were made. Runs that it does not name, which came from elsewhere, stand
    before the others, by name.

    Args:
        runs: the folder.
        pattern: which names of runs are included, as of `glob`.
    """
    found = {path.parent.name: path for path in runs.glob(f"{pattern}/settings.yaml")}
    try:
        listed = (runs / ORDER).read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        listed = []
    place = {name: number for number, name in enumerate(listed)}
    return [found[name] for name in sorted(found, key=lambda name: (place.get(name, -1), name))]
