"""Runs whose samples nobody has in one place, over real processes and pipes: the bits of a run that has them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.sites.gathering import gather_set
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from shoal.methods.features import landmark_offsets
from tests.conftest import SMALL, at_home
from tests.runs import go_on, straight
from tests.sites import Federation, federation, joined_set, name_of

FLOWS = {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 2, "steps": 3}
SPLIT = {"name": "cfl", "criterion": "schedule", "schedule": [2], "gamma_max": 0.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedkmeans": ("vector", {"rounds": 4}),
    "fedkmeans, masked": ("vector", {"rounds": 4, "method": {"name": "fedkmeans"}, "privacy": {"sums": "masked"}}),
    "fedkmeans, landmarks": ("vector", {"rounds": 6, "method": {"name": "fedkmeans", "landmarks": 12}}),
    "fedgmm": ("vector", {"rounds": 6}),
    "fedsimclr_kmeans": ("image", {"method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3}, "rounds": 4}),
    "fedpnp": ("image", {}),
    "fedcc": ("image", {}),
    "uifca": ("points", {"method": FLOWS, "rounds": 4}),
    "kfed": ("points", {}),
    "cfl": ("image", {"partition": {"kind": "by_column", "validation": 0.3}, "method": SPLIT}),
    "ifca": ("image", {"partition": {"kind": "by_column", "validation": 0.3}, "method": {"name": "ifca", "models": 2}}),
    "ssd": ("image", {}),
    "fedema": ("image", {}),
}
OF_SEVERAL_SITES = ("uniformity_inter",)
"""Numbers that only samples of different sites have together: nobody measures them."""
NORTH = 1
"""The client of the site that is killed."""
QUICK = ("fedkmeans", "kfed")
"""Cases that `make test` runs: one without memory, and one with memory that an evaluation reads."""


@pytest.fixture(scope="module")
def sites() -> Iterator[Federation]:
    with federation() as made:
        yield made


def settings_of(name: str, **changes: Any) -> Any:
    kind, case = CASES[name]
    model = {"encoder": "tiny-conv"} if kind == "image" else {}
    base = {**SMALL, "data": {"name": name_of(kind)}, "model": model, "partition": {"kind": "by_column"}}
    return make_settings({**base, "method": {"name": name}, **case, **changes})


def run_in_one_place(sites: Federation, settings: Any, kind: str, home: Path) -> RunFolder:
    with at_home(home):
        joined_set(places.store(), sites.sets[kind])
        return straight(settings)


def new_run_at_sites(sites: Federation, settings: Any) -> RunFolder:
    gather_set(settings.data.name, sites.pipes, places.store())
    return new_run(settings)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in CASES])
def test_bits_are_those_of_a_run_in_one_place_though_site_and_lead_are_killed(
    name: str, sites: Federation, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landmark_offsets, "MOST_COST", 9.0)  # sites take offsets off, though these are alike
    settings = settings_of(name)
    whole = run_in_one_place(sites, settings, CASES[name][0], tmp_path_factory.mktemp("one-place"))

    def end(event: Event) -> None:
        finished = event.kind == "client_finished" and event.facts["client"] == NORTH
        if finished and event.round == min(2, whole.status().round):
            raise KeyboardInterrupt

    run = new_run_at_sites(sites, settings)
    # After it has opened the run, and told its key: the answer of round 1 is lost.
    sites.pipes.kill_at["north"] = 2 if settings.privacy.sums == "masked" else 1
    with pytest.raises(KeyboardInterrupt):
        go_on(run, sites.pool.call, [end], slots=3)
    assert not sites.pipes.kill_at
    go_on(run, sites.pool.call, slots=3)
    assert run.status().weights_sha256 == whole.status().weights_sha256
    assert "landmarks" not in name or run.table("rounds")["site_offsets"].any()
    metrics, joint = run.table("rounds"), whole.table("rounds")
    shared = [c for c in joint if c in metrics and not c.startswith("seconds") and c != "finished_at"]
    for column in shared:
        np.testing.assert_allclose(metrics[column], joint[column], rtol=1e-6, err_msg=column)
    for column in joint.columns.difference([*shared, *OF_SEVERAL_SITES]):
        assert column.startswith("seconds") or column == "finished_at" or f"{column}_by_site" in metrics, column
