"""The table of a study by row, column, metric and seed, and helpers of the functions that derive numbers from runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        seeds: of what was measured.
        metrics: of each seed, by name.
        runs: the finished run of each seed; empty for a simulated study.
    """

    row: Row
    column: Column
    seeds: tuple[int, ...]
    metrics: tuple[Mapping[str, float], ...]
    runs: tuple[RunFolder, ...] = ()

    def place(self, metric: str) -> Place:
        """Return the place of a metric in the table."""
        return (self.row.key, self.column.key, metric)

    def place_of(self, seed: int | None) -> tuple[str, str, int | None]:
        """Return the place of a measured cell."""
        return (self.row.key, self.column.key, seed)


Derive = Callable[[Study, Sequence[Group], Path], Table]
"""(study, groups, folder for figures) to further numbers of the table."""


def each_run(groups: Sequence[Group], values: Mapping[str, Callable[[RunFolder], float | None]]) -> Table:
    """Return values that functions compute from each run, by metric; a run without a value is left out."""
    table: Table = {}
    for group in groups:
        for metric, compute in values.items():
            computed = {seed: compute(run) for seed, run in zip(group.seeds, group.runs, strict=True)}
            numbers: Values = {seed: value for seed, value in computed.items() if value is not None}
            if numbers:
                table[group.place(metric)] = numbers
    return table


def same_seeds(group: Group, reference: Group) -> dict[int, tuple[RunFolder, RunFolder]]:
    """Return the runs of a group, each beside the reference's run with the same seed, by seed."""
    theirs = dict(zip(reference.seeds, reference.runs, strict=True))
    return {seed: (run, theirs[seed]) for seed, run in zip(group.seeds, group.runs, strict=True) if seed in theirs}


def with_role(groups: Sequence[Group], role: Role) -> list[Group]:
    """Return the groups whose row has a role."""
    return [group for group in groups if group.row.role == role]


def reference_of(groups: Sequence[Group], group: Group) -> Group | None:
    """Return the group that a group is compared with: the row with role `reference` in the same column."""
    return next((other for other in with_role(groups, "reference") if other.column.key == group.column.key), None)


def metric_of(run: RunFolder, name: str) -> float:
    """Return a metric of a run's last evaluated round."""
    return float(run_result(run).metrics[name])


def late_change(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `late_change`: by how much the study's curve rises in the last quarter of a run's rounds.

    Where the run was not evaluated at three quarters, it is the rise since the evaluation before.
    """
    factor = 100.0 if study.percent and study.curve in study.metrics else 1.0

    def change(run: RunFolder) -> float | None:
        rounds = run.table("rounds")
        if study.curve not in rounds:
            return None
        curve = rounds[["round", study.curve]].dropna()
        early = curve[curve["round"] <= 0.75 * curve["round"].max()]
        if early.empty:
            return None
        return factor * float(curve[study.curve].iloc[-1] - early[study.curve].iloc[-1])

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
