"""Cells that were measured: found by study, scale, row, column, seed, and the commit that measured them.

Kept cells lie in `shoal_research/results`, a file a study and scale, which the pages of results are made from. A file
of the same form in results/studies below the home has the cells that were measured there. No file knows settings: a
cell stays what it is when a setting is dropped or renamed. Of several commits that measured a cell the newest counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.settings import places
from shoal.engine.store.code_version import GitState
from shoal.engine.store.codec import read_json, write_atomic
from shoal.engine.store.lineage import Lineage
from shoal_research.clean_code import require_clean_code
from shoal_research.definition import HOME, Study, StudyError
from shoal_research.table import Table

RESULTS = HOME / "results"
DOCS = HOME.parent / "docs"
"""The pages of results in this installation's repository."""
CELLS = "cells.json"
MAX_IMAGE_BYTES = 500_000
SIGNIFICANT_DIGITS = 6
"""Of kept values."""
CHANGED = "+"
"""After a commit whose work tree differed."""


@dataclass(frozen=True)
class Measurement:
    """A commit that measured cells: in twelve digits, when (YYYY-MM-DD), where, and with which versions."""

    commit: str
    date: str
    machine: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class MeasuredCell:
    """A cell with one seed.

    Attributes:
        row, column: keys.
        seed: of the run; None for numbers of all seeds together.
        commit: that measured it.
        metrics: by name, in the unit of the study.
        words: on the run, such as the method that was chosen for it; written by earlier code alone.
        run: its name in the home that measured it; empty for a kept cell.
    """

    row: str
    column: str
    seed: int | None
    commit: str
    metrics: Mapping[str, float]
    words: Mapping[str, str] | None = None
    run: str | None = None

    @property
    def place(self) -> tuple[str, str, int | None]:
        """The keys of row and column, and the seed."""
        return (self.row, self.column, self.seed)


@dataclass(frozen=True)
class MeasuredCells:
    """The measured cells of a study at a scale, with the commits that measured them from the oldest to the newest."""

    study: str
    scale: str
    measured: tuple[Measurement, ...] = ()
    cells: tuple[MeasuredCell, ...] = ()

    def newest(self) -> dict[tuple[str, str, int | None], MeasuredCell]:
        """Return each cell as the newest commit measured it, by row, column and seed."""
        age = {one.commit: number for number, one in enumerate(self.measured)}
        return {cell.place: cell for cell in sorted(self.cells, key=lambda cell: age[cell.commit])}

    def table(self) -> Table:
        """Return the newest values by row, column, metric and seed."""
        table: Table = {}
        for cell in self.newest().values():
            for metric, value in cell.metrics.items():
                table.setdefault((cell.row, cell.column, metric), {})[cell.seed] = value
        return {place: dict(sorted(values.items(), key=lambda item: item[0] or 0)) for place, values in table.items()}

    def with_cells(self, other: MeasuredCells) -> MeasuredCells:
        """Return these cells and others; of a cell that one commit measured twice the others' counts."""
        measured = {one.commit: one for one in (*self.measured, *other.measured)}
        cells = {(*cell.place, cell.commit): cell for cell in (*self.cells, *other.cells)}
        return MeasuredCells(
            self.study,
            self.scale,
            tuple(sorted(measured.values(), key=lambda one: one.date)),
            tuple(cells.values()),
        )


def study_folder(name: str, scale: str) -> Path:
    """Return the folder of a study's cells and figures below the home."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"


def load_kept(study: str, scale: str) -> MeasuredCells:
    """Return the kept cells of a study at a scale; none where nothing is kept."""
    return read_cells(RESULTS / f"{study}-{scale}.json", study, scale)


def load_measured(study: str, scale: str) -> MeasuredCells:
    """Return the cells of a study that were measured in this home."""
    return read_cells(study_folder(study, scale) / CELLS, study, scale)


def read_cells(path: Path, study: str, scale: str) -> MeasuredCells:
    """Read a file of cells; none where there is no file.

    Raises:
        StudyError: the file holds something else.
    """
    if not path.exists():
        return MeasuredCells(study, scale)
    try:
        return record_from_json(MeasuredCells, read_json(path))
    except BadRecord as error:
        raise StudyError(f"{path} has no cells of a study: {error}") from None


def write_cells(path: Path, cells: MeasuredCells) -> None:
    """Write a file of cells, a line each, so that a change can be read."""
    lines = [f' "study": {json.dumps(cells.study)}', f' "scale": {json.dumps(cells.scale)}']
    for name, records in (("measured", cells.measured), ("cells", cells.cells)):
        body = ",\n".join(f"  {json.dumps(record_to_json(record))}" for record in records)
        lines.append(f' "{name}": [\n{body}\n ]')
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def measurement(lineage: Lineage, date: str) -> Measurement:
    """Return the commit, the machine and the versions of a run."""
    hardware = lineage.hardware
    gpus = ", ".join(dict.fromkeys(hardware.gpus)) or "no GPU"
    machine = f"{hardware.cores} cores {hardware.machine}, {gpus}, {hardware.system.split()[0]}, {hardware.python}"
    return Measurement(commit_of(lineage.shoal.git), date, machine, dict(lineage.versions))


def commit_of(git: GitState) -> str:
    """Return a commit in twelve digits, with a + where the work tree differed."""
    if not git.commit:
        return "unknown"
    return f"{git.commit[:12]}{CHANGED}" if git.dirty else git.commit[:12]


def image_file(study: str, scale: str, name: str) -> Path:
    """Return the file of a kept figure, given its path in the folder of the result."""
    return DOCS / "images" / f"{study}-{scale}-{name.replace('/', '-')}"


def keep(study: Study, scale: str) -> Path:
    """Add the cells that were measured in this home to the kept ones, with the study's figures.

    A figure of some cells does not take the place of one of all.

    Returns:
        The file of the kept cells.

    Raises:
        StudyError: nothing was measured; its code is not committed; or a figure is too large.
    """
    here = load_measured(study.name, scale)
    if not here.cells:
        raise StudyError(f"nothing was measured of {study.name!r}: shoal study {study.name} --scale {scale}")
    require_clean_code(study.name, scale, [one.commit for one in here.measured], HOME)
    before = load_kept(study.name, scale)
    shows_all = before.newest().keys() <= here.newest().keys()
    images = {}
    for name in study.images:
        drawn = study_folder(study.name, scale) / name
        file = image_file(study.name, scale, name)
        if drawn.is_file() and (shows_all or not file.exists()):
            images[file] = image_to_keep(drawn)
    path = RESULTS / f"{study.name}-{scale}.json"
    write_cells(path, before.with_cells(as_kept(here)))
    for file, image in images.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
    return path


def as_kept(cells: MeasuredCells) -> MeasuredCells:
    """Return cells with rounded values, and without the names of runs."""

    def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.{SIGNIFICANT_DIGITS}g}") for name, value in metrics.items()}

    return replace(cells, cells=tuple(replace(cell, metrics=rounded(cell.metrics), run=None) for cell in cells.cells))


def image_to_keep(path: Path) -> bytes:
    """Return the bytes of a figure.

    Raises:
        StudyError: they are too many.
    """
    image = path.read_bytes()
    if len(image) > MAX_IMAGE_BYTES:
        raise StudyError(f"{path} has {len(image):,} bytes; at most {MAX_IMAGE_BYTES:,} are kept: draw fewer points")
    return image
