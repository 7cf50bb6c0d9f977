"""The runs of a study: every row in every column, with each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.studies.definition import Column, Row, RowAtScale, Study, StudyError, Variant

V = TypeVar("V", bound=Variant)


@dataclass(frozen=True)
class Cell:
    """One cell of a study with one seed.

    Attributes:
        row, column: where in the table it is.
        seed: of the run.
        settings: plain settings: what the run is started with, or what the study's simulation is given.
    """

    row: Row
    column: Column
    seed: int
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """How the progress of the study names it."""
        return f"{self.row.caption}, {self.column.caption}, seed {self.seed}"


def cells(
    study: Study, scale: str, seeds: int | None, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Cell]:
    """Every run of a study at one scale.

    Args:
        study: the study.
        scale: one of its scales, which may skip a row, run it in some columns only, or change its settings.
        seeds: runs of each cell; None: as many as the scale says, or says of the row.
        rows, columns: keys or captions of those that are wanted; none named: all.

    Raises:
        StudyError: the study has no such scale, row or column.
    """
    if scale not in study.scales:
        raise StudyError(f"study {study.name!r} has no scale {scale!r}; it has {', '.join(study.scales)}")
    chosen = study.scales[scale]
    wanted_rows = select(study.name, "row", study.rows, rows)
    wanted_columns = select(study.name, "column", study.columns_at(scale), columns)
    found = []
    for column in wanted_columns:
        for row in wanted_rows:
            own = chosen.rows.get(row.key, RowAtScale())
            if own.skip or (own.columns is not None and column.key not in own.columns):
                continue
            raw = merge(study.settings, chosen.settings, row.settings, column.settings, own.settings)
            for seed in range(seeds or own.seeds or chosen.seeds):
                settings = raw if study.simulate else make_settings(merge(raw, {"seed": seed})).to_json()
                found.append(Cell(row, column, seed, settings))
    return found


def select(study: str, what: str, there: Mapping[str, V], named: Iterable[str]) -> list[V]:
    """The rows or columns of these keys or captions, in the study's order; none named: all.

    Raises:
        StudyError: there is none of a name.
    """
    keys = set()
    for name in named:
        key = next((key for key, variant in there.items() if name in (key, variant.caption)), None)
        if key is None:
            captions = "; ".join(variant.caption for variant in there.values())
            raise StudyError(f"study {study!r} has no {what} {name!r}; it has {captions}")
        keys.add(key)
    return [variant for key, variant in there.items() if key in keys or not keys]
