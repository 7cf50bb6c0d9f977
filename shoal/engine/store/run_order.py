"""The order in which the runs of a folder were started."""

from __future__ import annotations

from pathlib import Path

from shoal.engine.store.codec import disk_error

ORDER = ".order"
"""The file in the folder of runs with the name of each run, in the order in which they were started."""


def in_order(runs: Path, pattern: str = "*") -> list[Path]:
    """Return the settings files of the runs in a folder, in the order in which the runs were started.

    The file `ORDER` decides, since names begin with the time, and a clock may have been set back. Runs that are not in
    it were copied from elsewhere; they come first, sorted by name.

    Args:
        runs: the folder.
        pattern: glob pattern of the names of runs to include.
    """
    found = {path.parent.name: path for path in runs.glob(f"{pattern}/settings.yaml")}
    try:
        listed = (runs / ORDER).read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        listed = []
    place = {name: number for number, name in enumerate(listed)}
    return [found[name] for name in sorted(found, key=lambda name: (place.get(name, -1), name))]


def add_to_order(runs: Path, name: str) -> None:
    """Append a run to the file with the order of the runs in a folder."""
    try:
        with (runs / ORDER).open("a") as file:
            file.write(f"{name}\n")  # short enough to be appended in one piece
    except OSError as error:
        raise disk_error(runs / ORDER, error) from error
