"""Rows of a study's result, and what the functions that derive them share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result
from shoal.studies.definition import Column, Role, Row, Study


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
        seeds: how many there are.
        paper: the paper's number, where it prints one.
        row_key, column_key: keys of row and column.
        values: the number of each seed; none where it is of all seeds together, as a count of them is.
        of_seeds: the seeds that `values` are of.
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
"""(study, runs, folder for figures) to further rows of the result."""
Draw = Callable[[Sequence[Measured], Path], None]
"""(metrics of all cells, folder for figures): a figure of a study that is simulated."""


def study_row(
    study: Study, cell: Group | Measured, metric: str, values: Sequence[float], seeds: Sequence[int] | None = None
) -> StudyRow:
    """Mean and deviation of a metric over seeds, beside the paper's value.

    Args:
        study, cell, metric: where the number is.
        values: of some seeds.
        seeds: which those are; by default the cell's, where there are as many.
    """
    if seeds is None:
        seeds = cell.seeds if len(cell.seeds) == len(values) else ()
    return StudyRow(
        cell.row.caption,
        cell.column.caption,
        metric,
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else 0.0,
        len(values),
        study.published(cell.row.key, cell.column.key, metric),
        cell.row.key,
        cell.column.key,
        tuple(map(float, values)) if seeds else (),
        tuple(seeds),
    )


def measured_rows(study: Study, measured: Sequence[Measured]) -> list[StudyRow]:
    """The study's metrics, row by row and column by column.

    Seeds that lack a metric are left out, and those of which it is infinite (an epsilon without noise): there is no
    mean of such.
    """
    factor = 100.0 if study.percent else 1.0
    found = []
    for cell in measured:
        seeds = cell.seeds or range(len(cell.metrics))
        for metric in study.metrics:
            values = [(m.get(metric, math.inf), seed) for m, seed in zip(cell.metrics, seeds, strict=True)]
            own = [(value * factor, seed) for value, seed in values if not math.isinf(value)]
            if own:
                found.append(study_row(study, cell, metric, *zip(*own, strict=True)))
    return found


def each_run(
    study: Study, groups: Sequence[Group], values: dict[str, Callable[[RunFolder], float | None]]
) -> list[StudyRow]:
    """Rows of values computed from each run, by metric; runs that have none are left out."""
    found = []
    for group in groups:
        seeds = group.seeds
        for metric, compute in values.items():
            computed = [(compute(run), seed) for run, seed in zip(group.runs, seeds, strict=True)]
            own = [(value, seed) for value, seed in computed if value is not None]
            if own:
                found.append(study_row(study, group, metric, *zip(*own, strict=True)))
    return found


def same_seeds(group: Group, reference: Group) -> dict[int, tuple[RunFolder, RunFolder]]:
    """Runs of a group beside the reference's of the same seed, by seed."""
    theirs = dict(zip(reference.seeds, reference.runs, strict=True))
    return {seed: (run, theirs[seed]) for seed, run in zip(group.seeds, group.runs, strict=True) if seed in theirs}


def of_role(groups: Sequence[Group], *roles: Role) -> list[Group]:
    """The groups whose row is compared as one of these."""
    return [group for group in groups if group.row.role in roles]


def reference_of(groups: Sequence[Group], group: Group) -> Group | None:
    """The group that a group is measured against: the row of role `reference` in the same column."""
    return next((r for r in of_role(groups, "reference") if r.column.key == group.column.key), None)


def metric_of(run: RunFolder, name: str) -> float:
    """A metric of a run's last evaluated round."""
    return float(run_result(run).metrics[name])


def bytes_and_seconds(study: Study, groups: Sequence[Group], folder: Path) -> list[StudyRow]:
    """Megabytes moved, in all directions, and seconds of each row."""
    return each_run(
        study,
        groups,
        {
            "MB": lambda run: sum(run_result(run).bytes.values()) / 1e6,
            "seconds": lambda run: float(run_result(run).seconds),
        },
    )
