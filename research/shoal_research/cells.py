"""The cells of a study: every row in every column, with each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal_research.definition import STAGED, Column, Row, RowAtScale, Study, StudyError, Variant
from shoal_research.sequential import STAGES

V = TypeVar("V", bound=Variant)


@dataclass(frozen=True)
class Cell:
    """One cell of a study with one seed.

    Attributes:
        row, column: its place in the table.
        seed: of the run.
        settings: as JSON, of the run, or for the function that simulates the study.
    """

    row: Row
    column: Column
    seed: int
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """The name of the cell in the study's progress."""
        return f"{self.row.caption}, {self.column.caption}, seed {self.seed}"


def cells(
    study: Study,
    scale: str,
    seeds: int | None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    staged: Mapping[str, int] | None = None,
) -> list[Cell]:
    """Return the cells of a study at one scale, one for each seed.

    Args:
        study: the study.
        scale: one of its scales, which may skip a row, run it in some columns only, or change its settings.
        seeds: runs of each cell; None: the number that the scale names for the row, or for all rows.
        rows, columns: keys or captions of the ones to run; by default all.
        staged: runs of cells whose seeds come in stages, by `row/column`; by default those of the first stage.

    Raises:
        StudyError: the study has no such scale, row or column, or the scale runs none of these cells.
    """
    if scale not in study.scales:
        raise StudyError(f"study {study.name!r} has no scale {scale!r}; it has {', '.join(study.scales)}")
    chosen = study.scales[scale]
    wanted_rows = select(study.name, "row", study.rows, rows)
    wanted_columns = select(study.name, "column", study.columns_at(scale), columns)
    found = []
    for column in wanted_columns:
        for row in wanted_rows:
            if not study.runs_at(scale, row.key, column.key):
                continue
            own = chosen.rows.get(row.key, RowAtScale())
            raw = merge(study.settings, chosen.settings, row.settings, column.settings, own.settings)
            runs = seeds or runs_of(study, scale, row.key, column.key, staged or {})
            for seed in range(chosen.first_seed, chosen.first_seed + runs):
                if study.simulate:
                    settings = raw
                else:
                    settings = make_settings(merge(raw, {"seed": seed})).to_json()
                found.append(Cell(row, column, seed, settings))
    if not found:
        raise StudyError(
            f"study {study.name!r} runs none of these cells at scale {scale!r}: name other rows or columns"
        )
    return found


def runs_of(study: Study, scale: str, row: str, column: str, staged: Mapping[str, int]) -> int:
    """Return the runs of a cell; in stages those of `staged`, by `row/column`, or of the first stage."""
    planned = study.seeds_at(scale, row)
    if planned == STAGED:
        return staged.get(f"{row}/{column}", STAGES[0])
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
