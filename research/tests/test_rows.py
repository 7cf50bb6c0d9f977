"""Rows of a study's table: what has no number has no row."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal_research.definition import load_study
from shoal_research.rows import Group, Measured, late_change, measured_rows
from tests.runs import straight


def test_seeds_without_a_number_are_left_out() -> None:
    study = load_study("private-updates")
    runs = (
        {"acc": 0.5, "epsilon_sent": math.inf},
        {"acc": 0.7, "epsilon_sent": 2.0, "epsilon_mean": 1.0},
        {"epsilon_sent": 4.0},
    )
    found = measured_rows(study, [Measured(study.rows["clipped"], study.columns["few"], runs, (3, 5, 8))])
    assert {(row.metric, row.mean, row.of_seeds) for row in found} == {
        ("acc", 0.6, (3, 5)),
        ("epsilon_mean", 1.0, (5,)),
        ("epsilon_sent", 3.0, (5, 8)),
    }


def test_a_curve_that_still_rises_has_a_late_change(home: Path, small: Callable[..., Any]) -> None:
    """Of 4 rounds the last quarter is the fourth."""
    study = load_study("fedpnp-curves")
    run = straight(small(method="fedcc", rounds=4, evaluate={"every": 1}))
    curve = run.table("rounds").set_index("round")["acc"]
    cell = Group(study.rows["fedcc"], study.columns["dirichlet_0_5"], (run,))
    (row,) = late_change(study, [cell], home)
    assert (row.metric, row.of_seeds) == ("late_change", (0,))
    assert row.values[0] == pytest.approx(100 * (curve[4] - curve[3]))
    one = straight(small(method="kmeans", rounds=1))
    assert late_change(study, [Group(study.rows["kmeans"], cell.column, (one,))], home) == [], "a point is no curve"
