"""The cells of a study: every row in every column, with each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.engine.settings.merge import merge
from shoal_research.cfl.planted import with_planted_set
from shoal_research.definition import Column, Row, Study, StudyError, Variant

V = TypeVar("V", bound=Variant)


@dataclass(frozen=True)
class Cell:
    """One cell of a study with one seed.

    Attributes:
        row, column: its place in the table.
        seed: of the run.
        settings: of the run.
    """

    row: Row
    column: Column
    seed: int
    settings: dict[str, Any]

    @property
    def place(self) -> tuple[str, str, int]:
        """The keys of row and column, and the seed."""
        return (self.row.key, self.column.key, self.seed)

    @property
    def label(self) -> str:
        """The name of the cell in the study's progress."""
        return f"{self.row.caption}, {self.column.caption}, seed {self.seed}"


def cells(
    study: Study, scale: str, seeds: int | None = None, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells of a study at one scale, one for each seed.

    Args:
        study: the study.
        scale: one of its scales, which may leave a row out, run it in some columns only, or change its settings.
        seeds: runs of each cell; by default those that the scale names.
        rows, columns: keys or captions of the ones to run; by default all.

    Raises:
        StudyError: the study has no such scale, row or column, or the scale runs none of these cells.
    """
    if scale not in study.scales:
        raise StudyError(f"study {study.name!r} has no scale {scale!r}; it has {', '.join(study.scales)}")
    chosen = study.scales[scale]
    planned = []
    wanted_rows = select(study.name, "row", study.rows, rows)
    for column in select(study.name, "column", study.columns_at(scale), columns):
        for row in wanted_rows:
            if not study.runs_at(scale, row.key, column.key):
                continue
            changes = study.row_at(scale, row.key).settings
            settings = merge(study.settings, chosen.settings, row.settings, column.settings, changes)
            of_row = study.seeds_at(scale, row.key)
            for seed in range(of_row.start, of_row.start + (seeds or len(of_row))):
                drawn = settings
                if study.drawn:
                    drawn = merge(settings, {"data": {"options": {"seed": seed}}})
                planned.append(Cell(row, column, seed, with_planted_set(drawn, seed)))
    if not planned:
        raise StudyError(
            f"study {study.name!r} runs none of these cells at scale {scale!r}: name other rows or columns"
        )
    return planned


def select(study: str, what: str, variants: Mapping[str, V], named: Iterable[str]) -> list[V]:
    """Return the rows or columns with these keys or captions, in the study's order; all where none is named.

    Raises:
        StudyError: no row or column has a name.
    """
    keys = set()
    for name in named:
        key = next((key for key, variant in variants.items() if name in (key, variant.caption)), None)
        if key is None:
            captions = "; ".join(variant.caption for variant in variants.values())
            raise StudyError(f"study {study!r} has no {what} {name!r}; it has {captions}")
        keys.add(key)
    return [variant for key, variant in variants.items() if key in keys or not keys]
