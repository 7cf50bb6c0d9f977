"""FedPNP's studies: what each cell of table 1 is run with."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_research.cells import cells
from shoal_research.definition import load_study
from shoal_research.runner import settings_of


def table_1(scale: str, row: str, column: str) -> dict[str, Any]:
    (cell,) = cells(load_study("fedpnp-table1"), scale, 1, [row], [column])
    return settings_of(cell, {}).to_json()


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_centralised_reference_has_its_own_optimiser(scale: str) -> None:
    """SGD 0.1 and batches of 512; at the scale of the paper 1,000 epochs. The others keep the paper's Adam."""
    local = table_1(scale, "ncc", "iid")["local"]
    assert {key: local[key] for key in ("optimiser", "lr", "momentum", "weight_decay", "batch")} == {
        "optimiser": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "batch": 512,
    }
    other = table_1(scale, "fedpnp", "iid")["local"]
    assert (other["optimiser"], other["batch"]) == ("adam", 128)
    if scale == "paper":
        settings = table_1(scale, "ncc", "iid")
        assert settings["rounds"] * settings["local"]["epochs"] == 1000


def test_table_1_has_the_cells_of_cifar_100() -> None:
    study = load_study("fedpnp-table1")
    for beta, column in ((None, "cifar100_iid"), (0.5, "cifar100_dirichlet_0_5"), (0.1, "cifar100_dirichlet_0_1")):
        settings = table_1("paper", "fedpnp", column)
        assert settings["data"]["name"] == "cifar100"
        assert settings["model"]["encoder"] == "resnet18"
        assert settings["partition"]["kind"] == ("iid" if beta is None else "dirichlet")
        assert settings["partition"].get("beta") == beta
        rows = {cell.row.key for cell in cells(study, "paper", 1, (), [column])}
        assert rows == {"kmeans", "single", "fedbyolcc", "fedcc", "fedpnp"}
        assert study.published("fedpnp", column, "acc") is not None
    assert len({cell.column.key for cell in cells(study, "paper", 1)}) == 6
    assert len({cell.column.key for cell in cells(study, "cpu", 1)}) == 3
