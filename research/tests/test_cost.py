"""The cost of a claim that was not run."""

from __future__ import annotations

import pytest

from shoal_research import cost
from shoal_research.cells import cells
from shoal_research.cost import core_rates, cost_words, image_passes
from shoal_research.definition import load_study


def test_a_run_costs_its_images() -> None:
    """50,000 images in 5 epochs of 100 rounds at 8.3 ms for 128 of them are 27 minutes; three seeds of two rows."""
    study = load_study("fedpnp-table1")
    claim = next(claim for claim in study.claims if claim.claim.startswith("CIFAR-100, IID: FedPNP's ACC is above"))
    planned = cells(study, "paper", 1, rows=["fedpnp"], columns=["cifar100_iid"])
    assert image_passes(study, planned[0].settings) == 50_000 * 5 * 100
    seconds = 3 * 50_000 * 5 * 100 * (8.3e-3 + 6.1e-3) / 128
    assert cost_words(study, "paper", [claim]) == f"about {seconds / 3600:.0f} GPU hours on an H100"


def test_networks_for_processors_cost_what_kept_results_took() -> None:
    study = load_study("cfcl-aggregation-interval")
    claim = study.claims[0]
    rate = core_rates()["pooled-conv", "fashion-mnist"]
    hours = 6 * 10 * 64 * 2000 * rate / 3600  # two columns, three seeds, ten devices
    assert cost_words(study, "paper", [claim]) == f"about {hours:.0f} core hours"


def test_what_nothing_timed_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "core_rates", dict)
    study = load_study("cfcl-aggregation-interval")
    assert cost_words(study, "paper", study.claims[:1]) == "cost not measured"
