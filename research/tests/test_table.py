"""Numbers that every system derives from runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from shoal_research.definition import load_study
from shoal_research.fedpnp import derive
from shoal_research.table import Group, late_change
from tests.runs import straight


def test_a_curve_that_still_rises_has_a_late_change(home: Path, small: Callable[..., Any]) -> None:
    """Of 4 rounds the last quarter is the fourth."""
    study = load_study("fedpnp-curves")
    run = straight(small(method="fedcc", rounds=4, evaluate={"every": 1}))
    curve = run.table("rounds").set_index("round")["acc"]
    cell = Group(study.rows["fedcc"], study.columns["dirichlet_0_5"], {0: run})
    ((place, values),) = late_change(study, [cell], home).items()
    assert place == ("fedcc", "dirichlet_0_5", "late_change")
    assert values == {0: pytest.approx(100 * (curve[4] - curve[3]))}
    one = straight(small(method="kmeans", rounds=1))
    point = Group(study.rows["fedcc"], cell.column, {0: one})
    assert late_change(study, [point], home) == {}, "a point is no curve"


def test_rounds_are_counted_to_the_final_acc_of_the_reference_with_the_same_seed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study("fedpnp-curves")

    def group(row: str, column: str, *curves: list[float]) -> Group:
        runs: dict[int, Any] = {}
        for seed, acc in enumerate(curves):
            table = pd.DataFrame({"round": [1, 2, 3], "acc": acc})
            runs[seed] = SimpleNamespace(name=f"{row} {column} {seed}", table=lambda _, table=table: table)
        return Group(study.rows[row], study.columns[column], runs)

    monkeypatch.setattr(derive, "metric_of", lambda run, name: run.table("rounds")[name].iloc[-1])
    groups = [
        group("fedcc", "iid", [0.1, 0.2, 0.6]),
        group("fedpnp", "iid", [0.5, 0.7, 0.7], [0.9, 0.9, 0.9]),
        group("single", "iid", [0.1, 0.2, 0.3]),
        group("fedpnp", "dirichlet_0_5", [0.9, 0.9, 0.9]),
    ]
    found = derive.rounds_to_reference(study, groups, home)
    assert {row: values for (row, _, _), values in found.items()} == {
        "fedcc": {0: 3.0},
        "fedpnp": {0: 2.0},
        "single": {0: 4.0},
    }
