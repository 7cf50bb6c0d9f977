"""Derived rows of the FedPNP studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal_research.definition import Study
from shoal_research.table import Group, Table, metric_of, references


def rounds_to_reference(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `rounds_to_reference`: the first evaluated round with an ACC of at least the reference's final one.

    The reference has the same column and seed. For a run that never gets there it is one round more than it has.
    """
    goals = {key: metric_of(run, "acc") for key, run in references(groups).items()}
    table: Table = {}
    for group in groups:
        for seed, run in group.runs.items():
            if (group.column.key, seed) in goals:
                curve = run.table("rounds")[["round", "acc"]].dropna()
                reached = curve["round"][curve["acc"] >= goals[group.column.key, seed]]
                rounds = min([*reached, curve["round"].max() + 1])
                table.setdefault(group.place("rounds_to_reference"), {})[seed] = float(rounds)
    return table
