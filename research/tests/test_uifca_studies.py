"""Studies of UIFCA: sets are drawn with each run's seed, and purity is that after cluster rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal_research.cells import cells
from shoal_research.definition import load_study
from shoal_research.table import Group
from shoal_research.uifca.derive import purity_rounds
from tests.runs import straight

STUDY = load_study("uifca-purity-rounds")


def test_each_seed_has_points_of_its_own() -> None:
    planned = cells(STUDY, "cpu", 2, ["gaussian_uifca"], ["p_0"])
    assert [cell.settings["data"]["options"]["seed"] for cell in planned] == [0, 1]
    assert planned[0].settings["data"]["options"]["clusters"] == 4


@pytest.mark.parametrize(("lr", "every_point"), [(1e-3, True), (1e-9, False)])
def test_points_are_found_after_a_cluster_round_or_never(home: Path, lr: float, every_point: bool) -> None:
    (cell,) = cells(STUDY, "cpu", 1, ["gaussian_uifca"], ["p_1"])
    small = {"data": {"options": {"samples": 60, "dimension": 6, "clusters": 2}}, "partition": {"clients": 2}}
    small |= {"method": {"cluster_rounds": 6, "comm_rounds": 3, "steps": 20}, "evaluate": {"every": 3}}
    run = straight(make_settings(merge(cell.settings, small, {"local": {"lr": lr}, "tracking": {"mlflow": False}})))
    group = Group(cell.row, cell.column, {0: run})
    found = {place[2]: values[0] for place, values in purity_rounds(STUDY, [group], home).items()}
    assert set(found) | {"purity"} == set(STUDY.metrics)
    assert (found["rounds_to_all"] <= 6) is every_point
    by_round = run.table("rounds").set_index("round")["purity"]
    assert found["purity/2"] == by_round[6]
    assert found["purity/5"] == by_round.get(15, by_round.iloc[-1])
