"""Rows of a study's result, and helpers of the functions that derive rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result
from shoal_research.definition import Column, Role, Row, Study


@dataclass(frozen=True)
class Group:
    """The finished runs of one row in one column, in the order of their seeds."""

    row: Row
    column: Column
    runs: tuple[RunFolder, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(int(run.settings().seed) for run in self.runs)


@dataclass(frozen=True)
class Measured:
    """The metrics of one row in one column, by name, a dictionary for each seed, in the order of `seeds`."""

    row: Row
    column: Column
    metrics: tuple[dict[str, float], ...]
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class StudyRow:
    """One number of a study's result.

    Attributes:
        row, column: captions.
        metric: name of the metric.
        mean, std: over seeds; the deviation of a single seed is 0.
        seeds: number of seeds.
        paper: the paper's number; None where it prints none.
        row_key, column_key: keys of row and column.
        values: the number of each seed; empty where the row has one number for all seeds, such as a count of them.
        of_seeds: the seed of each value.
    """

    row: str
    column: str
    metric: str
    mean: float
    std: float
    seeds: int
    paper: float | None
    row_key: str
    column_key: str
    values: tuple[float, ...] = ()
    of_seeds: tuple[int, ...] = ()


Derive = Callable[[Study, Sequence[Group], Path], list[StudyRow]]
"""(study, runs, folder for figures) to added rows of the result."""
Draw = Callable[[Sequence[Measured], Path], None]
"""(metrics of all cells, folder for figures): draws a figure of a simulated study."""


def study_row(
    study: Study, cell: Group | Measured, metric: str, values: Sequence[float], seeds: Sequence[int] | None = None
) -> StudyRow:
    """Return mean and deviation of a metric over seeds, beside the paper's value.

    Args:
        study, cell, metric: place of the number in the table.
        values: one for each of some seeds.
        seeds: these seeds; by default those of the cell, if there are as many.
    """
    if seeds is None:
        seeds = ()
        if len(cell.seeds) == len(values):
            seeds = cell.seeds
    return StudyRow(
        row=cell.row.caption,
        column=cell.column.caption,
        metric=metric,
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else 0.0,
        seeds=len(values),
        paper=study.published(cell.row.key, cell.column.key, metric),
        row_key=cell.row.key,
        column_key=cell.column.key,
        values=tuple(map(float, values)) if seeds else (),
        of_seeds=tuple(seeds),
    )


def measured_rows(study: Study, measured: Sequence[Measured]) -> list[StudyRow]:
    """Return the study's metrics, row by row and column by column.

    Seeds without a metric are left out, and those with an infinite one (an epsilon without noise), which has no mean.
    """
    factor = 1.0
    if study.percent:
        factor = 100.0
    found = []
    for cell in measured:
        seeds = cell.seeds or range(len(cell.metrics))
        for metric in study.metrics:
            values = [metrics.get(metric, math.inf) for metrics in cell.metrics]
            finite = [
                (value * factor, seed) for value, seed in zip(values, seeds, strict=True) if not math.isinf(value)
            ]
            if finite:
                found.append(study_row(study, cell, metric, *zip(*finite, strict=True)))
    return found


def each_run(
    study: Study, groups: Sequence[Group], values: dict[str, Callable[[RunFolder], float | None]]
) -> list[StudyRow]:
    """Return rows of values that functions compute from each run, by metric; a run without a value is left out."""
    found = []
    for group in groups:
        seeds = group.seeds
        for metric, compute in values.items():
            computed = [(compute(run), seed) for run, seed in zip(group.runs, seeds, strict=True)]
            numbers = [(value, seed) for value, seed in computed if value is not None]
            if numbers:
                found.append(study_row(study, group, metric, *zip(*numbers, strict=True)))
    return found


def same_seeds(group: Group, reference: Group) -> dict[int, tuple[RunFolder, RunFolder]]:
    """Return the runs of a group, each beside the reference's run with the same seed, by seed."""
    theirs = dict(zip(reference.seeds, reference.runs, strict=True))
    return {seed: (run, theirs[seed]) for seed, run in zip(group.seeds, group.runs, strict=True) if seed in theirs}


def with_role(groups: Sequence[Group], *roles: Role) -> list[Group]:
    """Return the groups whose row has one of these roles."""
    return [group for group in groups if group.row.role in roles]


def reference_of(groups: Sequence[Group], group: Group) -> Group | None:
    """Return the group that a group is compared with: the row with role `reference` in the same column."""
    return next((r for r in with_role(groups, "reference") if r.column.key == group.column.key), None)


def metric_of(run: RunFolder, name: str) -> float:
    """Return a metric of a run's last evaluated round."""
    return float(run_result(run).metrics[name])


def late_change(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Return rows of `late_change`: by how much the study's curve rises in the last quarter of a run's rounds.

    Where the run was not evaluated at three quarters, it is the rise since the evaluation before.
    """
    factor = 1.0
    if study.percent and study.curve in study.metrics:
        factor = 100.0

    def change(run: RunFolder) -> float | None:
        table = run.table("rounds")
        if study.curve not in table:
            return None
        curve = table[["round", study.curve]].dropna()
        early = curve[curve["round"] <= 0.75 * curve["round"].max()] if len(curve) else curve
        if early.empty:
            return None
        return factor * float(curve[study.curve].iloc[-1] - early[study.curve].iloc[-1])

    return each_run(study, groups, {"late_change": change})


def bytes_and_seconds(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Return rows of megabytes moved in all directions, and of seconds."""
    return each_run(
        study,
        groups,
        {
            "MB": lambda run: sum(run_result(run).bytes.values()) / 1e6,
            "seconds": lambda run: float(run_result(run).seconds),
        },
    )
