"""What the self-supervised studies derive from finished runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.data.views.augment import normalise
from shoal.engine.store.checkpoint import load_round
from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.preflight import check_method
from shoal.methods.scores.representation import uniformity
from shoal.methods.training.local import load
from shoal_research.cells import Cell, cells
from shoal_research.definition import Row, function, load_study, study_names
from shoal_research.runner import data_of, settings_of
from shoal_research.ssd import derive as ssd
from shoal_research.table import Group
from tests.runs import straight

STUDY = load_study("ssd-soft-hard")


def group(row: Row, *runs: Any) -> Group:
    """Runs as a group of the study's only column."""
    return Group(row, STUDY.columns["silo"], dict(enumerate(runs)))


def full(cell: Cell) -> dict[str, Any]:
    """The settings of the run of a cell, with their defaults."""
    return settings_of(cell, {}).to_json()


@pytest.mark.parametrize("name", [name for name in study_names() if load_study(name).system == "ssd"])
def test_the_method_takes_the_settings_of_every_cell(home: Path, name: str) -> None:
    study = load_study(name)
    for scale in study.scales:
        if study.add_data:
            function(study, study.add_data)(data_of(cells(study, scale, 1), {}))
        for cell in cells(study, scale, 1):
            check_method(settings_of(cell, {}))


def test_cells_of_cifar100_are_those_of_the_paper() -> None:
    """The paper's device setting: 50 clients, a fifth of them in each round."""
    study = load_study("ssd-table")
    silo, device = (
        full(cells(study, "paper", 1, ["ssd"], [column])[0]) for column in ("cifar100_silo", "cifar100_device")
    )
    for settings, clients, fraction in ((silo, 10, 1.0), (device, 50, 0.2)):
        assert settings["data"]["name"] == "cifar100"
        assert settings["partition"]["clients"] == clients
        assert settings["participation"]["fraction"] == fraction
        assert settings["model"]["encoder"] == "resnet18"
    assert study.published("ssd", "cifar100_device", "probe") == 0.4521
    assert study.published("fedalignuniform", "cifar100_silo", "probe") == 0.5725


def test_the_table_has_both_directions_of_distillation() -> None:
    found = {
        cell.row.key: (method["name"], method.get("direction"))
        for cell in cells(load_study("ssd-table"), "paper", 1, columns=["silo"])
        if (method := full(cell)["method"])
    }
    assert found["distillation"] == found["ssd"] == ("ssd_forms", "poster")
    assert found["distillation_code"] == found["ssd_code"] == ("ssd_forms", "code")


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_table_has_the_papers_other_methods_with_their_own_optimisers(scale: str) -> None:
    found = {cell.row.key: full(cell) for cell in cells(load_study("ssd-table"), scale, 1, columns=["silo"])}
    assert found["fedx"]["method"] == {"name": "fedx", "tau": 0.1, "tau_target": 0.1}
    assert found["fedu2"]["method"] == {"name": "fedu2", "tau": 0.07, "uniform": 0.01, "server_lr": 0.1}
    for key, rate, batch in (("fedx", 0.01, 64), ("fedu2", 0.032, 128), ("feddecorr", 0.1, 128)):
        assert (found[key]["local"]["lr"], found[key]["local"]["batch"]) == (rate, batch)
    reference = found["fedalignuniform"]
    assert found["feddecorr"] == {**reference, "method": {**reference["method"], "decorrelation": 0.1}}


def test_projections_are_judged_as_each_client_sees_them(home: Path, small: Callable[..., Any]) -> None:
    """Confined to subspaces of their own, projections of different clients are orthogonal, and farther apart."""
    methods = {"soft": {"name": "ssd", "delta": 0.0}, "hard": {"name": "ssd_forms", "gamma": 0.0, "form": "hard"}}
    runs = {key: straight(small(method=m, rounds=1)) for key, m in methods.items()}
    other = straight(small(method={"name": "fedsimclr"}, rounds=1))
    groups = [group(STUDY.rows[key], run) for key, run in runs.items()]
    rows = ssd.projections(STUDY, [*groups, group(Row(key="fedsimclr", caption="FedSimCLR"), other)], home)
    assert {row for row, _, _ in rows} == {"soft", "hard"}
    found = {(row, metric): values[0] for (row, _, metric), values in rows.items()}
    assert found["soft", "z_uniformity"] < found["hard", "z_uniformity"] < 4
    opened = OpenedRun(runs["soft"])
    network = opened.method.network()
    load(network, load_round(runs["soft"], 1).judged.tensors)
    x = normalise(opened.data.test_x.float() / 255)
    assert len(x) <= ssd.SAMPLES_BETWEEN_ROUNDS, "all of them are judged"
    assert found["soft", "test_z_uniformity"] == pytest.approx(uniformity(network.eval()(x).z.detach()), abs=1e-4)


def test_an_encoder_is_probed_on_another_data_set(
    home: Path, small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = straight(small(method={"name": "ssd"}, rounds=1))
    other = straight(small(method={"name": "kmeans"}, rounds=1))
    monkeypatch.setitem(ssd.PROBED_ON, run.settings().data.name, ("digits", 100))
    rows = ssd.transfer(STUDY, [group(STUDY.rows["soft"], run), group(STUDY.rows["hard"], other)], home)
    assert list(rows) == [("soft", "silo", "transfer")], "K-means has no encoder"
    assert 0.2 < rows["soft", "silo", "transfer"][0] <= 1, "digits by chance: 0.1"
