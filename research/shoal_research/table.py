"""The table of a study by row, column, metric and seed, and helpers of the functions that derive numbers from runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result
from shoal_research.definition import Column, Role, Row, Study

Place = tuple[str, str, str]
"""Keys of row and column, and a metric."""
Values = dict[int | None, float]
"""A number for each seed; a single one under None is of all seeds together."""
Table = dict[Place, Values]


@dataclass(frozen=True)
class Group:
    """One row in one column.

    Attributes:
        row, column: the place in the table.
        runs: the finished run of each seed.
    """

    row: Row
    column: Column
    runs: Mapping[int, RunFolder]

    @property
    def keys(self) -> tuple[str, str]:
        """The keys of row and column."""
        return (self.row.key, self.column.key)

    @property
    def first_run(self) -> RunFolder:
        """The run of the first seed."""
        return next(iter(self.runs.values()))

    def place(self, metric: str) -> Place:
        """Return the place of a metric in the table."""
        return (*self.keys, metric)


Derive = Callable[[Study, Sequence[Group], Path], Table]
"""(study, groups, folder for figures) to further numbers of the table."""


def each_run(groups: Sequence[Group], values: Mapping[str, Callable[[RunFolder], float | None]]) -> Table:
    """Return values that functions compute from each run, by metric; a run without one (None or NaN) is left out."""
    table: Table = {}
    for group in groups:
        for metric, compute in values.items():
            for seed, run in group.runs.items():
                value = compute(run)
                if value is not None and not math.isnan(value):
                    table.setdefault(group.place(metric), {})[seed] = value
    return table


def last(values: pd.Series) -> float:
    """Return the last number of a column over rounds; NaN where it has none."""
    return float(values.dropna().tail(1).mean())


def with_role(groups: Sequence[Group], role: Role) -> list[Group]:
    """Return the groups whose row has a role."""
    return [group for group in groups if group.row.role == role]


def references(groups: Sequence[Group]) -> dict[str, RunFolder]:
    """Return by the name of each run that of the row with role `reference` which has its column and seed."""
    return {
        run.name: reference.runs[seed]
        for reference in with_role(groups, "reference")
        for group in groups
        for seed, run in group.runs.items()
        if group.column == reference.column and seed in reference.runs
    }


def metric_of(run: RunFolder, name: str) -> float:
    """Return a metric of a run's last evaluated round."""
    return float(run_result(run).metrics[name])


def late_change(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `late_change`: by how much the study's curve rises in the last quarter of a run's rounds.

    Where the run was not evaluated at three quarters, it is the rise since the evaluation before.
    """
    factor = 100.0 if study.percent and study.curve in study.metrics else 1.0

    def change(run: RunFolder) -> float:
        curve = run.table("rounds").reindex(columns=["round", study.curve]).dropna()
        early = curve[curve["round"] <= 0.75 * curve["round"].max()]
        return factor * (last(curve[study.curve]) - last(early[study.curve]))

    return each_run(groups, {"late_change": change})


def bytes_and_seconds(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return megabytes moved in all directions, and seconds."""
    return each_run(
        groups,
        {
            "MB": lambda run: sum(run_result(run).bytes.values()) / 1e6,
            "seconds": lambda run: float(run_result(run).seconds),
        },
    )
