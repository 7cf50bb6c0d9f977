"""Derived rows of the FedPNP studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal_research.definition import Study
from shoal_research.table import Group, Table, each_run, metric_of, references


def rounds_to_reference(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return `rounds_to_reference`: the first evaluated round with an ACC of at least the reference's final one.

    The reference has the same column and seed. For a run that never gets there it is one round more than it has.
    """
    others = references(groups)

    def rounds(run: RunFolder) -> float | None:
        if run.name not in others:
            return None
        curve = run.table("rounds")[["round", "acc"]].dropna()
        reached = curve["round"][curve["acc"] >= metric_of(others[run.name], "acc")]
        return float(min([*reached, curve["round"].max() + 1]))

    return each_run(groups, {"rounds_to_reference": rounds})
