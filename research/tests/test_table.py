"""Numbers that every system derives from runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal_research.definition import load_study
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
