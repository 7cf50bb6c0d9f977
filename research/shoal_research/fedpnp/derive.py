"""Derived rows of the FedPNP studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal_research.definition import Study
from shoal_research.table import Group, Table, Values, metric_of, with_role


def rounds_to_reference(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `rounds_to_reference`: the first round in which a run's ACC is at least the reference's final one.

    The reference has the same column and seed. For a run that never gets there it is one round more than it has.
    """
    goals = {
        (group.column.key, seed): metric_of(run, "acc")
        for group in with_role(groups, "reference")
        for seed, run in zip(group.seeds, group.runs, strict=True)
    }
    table: Table = {}
    for group in groups:
        rounds: Values = {
            seed: rounds_to(run, goals[group.column.key, seed])
            for seed, run in zip(group.seeds, group.runs, strict=True)
            if (group.column.key, seed) in goals
        }
        if rounds:
            table[group.place("rounds_to_reference")] = rounds
    return table


def rounds_to(run: RunFolder, goal: float) -> float:
    """Return the first evaluated round in which a run's ACC is at least a goal; one more than its last otherwise."""
    curve = run.table("rounds")[["round", "acc"]].dropna()
    reached = curve[curve["acc"] >= goal]
    if len(reached):
        return float(reached["round"].iloc[0])
    return float(curve["round"].max()) + 1
