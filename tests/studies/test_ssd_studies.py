"""What the self-supervised studies derive from finished runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.augment import normalise
from engine.checkpoint import load_round
from engine.opened_run import OpenedRun
from methods.scores.representation import uniformity
from methods.training.local import load
from review.result import run_result
from studies.ssd import derive as ssd
from tests.runs import straight


def test_projections_are_judged_as_each_client_sees_them(home: Path, small: Callable[..., Any]) -> None:
    """Confined to subspaces of their own, projections of different clients are orthogonal: squared distance 2."""
    methods = {"soft": {"name": "ssd", "delta": 0.0}, "hard": {"name": "ssd", "gamma": 0.0, "separation": "hard"}}
    runs = {(row, "silo"): [straight(small(method=m, rounds=1))] for row, m in methods.items()}
    other = straight(small(method={"name": "fedsimclr"}, rounds=1))
    rows = ssd.projections({}, {**runs, ("FedSimCLR", "silo"): [other]}, home)
    assert {row["row"] for row in rows} == {"soft", "hard"}
    found = {(row["row"], row["metric"]): row["mean"] for row in rows}
    assert found["hard", "z_uniformity_inter"] == pytest.approx(4.0, abs=1e-4)
    assert found["soft", "z_uniformity_inter"] < 3.9
    for row in ("soft", "hard"):
        low, high = sorted((found[row, "z_uniformity_inter"], found[row, "z_uniformity_intra"]))
        assert low <= found[row, "z_uniformity"] <= high
        assert 0 < found[row, "z_alignment"] < 4
    opened = OpenedRun(runs["soft", "silo"][0])
    network = opened.method.network()
    load(network, load_round(runs["soft", "silo"][0], 1).server.tensors)
    x = normalise(opened.data.test_x.float() / 255)
    assert len(x) <= ssd.SEEN, "all of them are judged"
    assert found["soft", "test_z_uniformity"] == pytest.approx(uniformity(network.eval()(x).z.detach()), abs=1e-4)


def test_gains_are_counted_against_the_same_seed(home: Path, small: Callable[..., Any]) -> None:
    plain, more = ({"name": "ssd", "gamma": gamma, "delta": 0.0} for gamma in (0.0, 1.0))
    groups = {
        (row, "silo"): [straight(small(method=method, rounds=1, seed=seed)) for seed in (0, 1)]
        for row, method in (("FedAlignUniform", plain), ("soft", more))
    }
    found = {row["metric"]: row["mean"] for row in ssd.seeds_above({}, groups, home)}
    theirs, ours = ([run_result(run).metrics["uniformity"] for run in groups[row, "silo"]] for row, _ in groups)
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert found["uniformity_gain"] == pytest.approx(sum(gains) / 2)
    assert found["seeds_more_uniform"] == sum(gain > 0 for gain in gains)
    z = [[ssd.judge_projections(run.path)["test_z_uniformity"] for run in groups[row, "silo"]] for row, _ in groups]
    gains = [a - b for a, b in zip(z[1], z[0], strict=True)]
    assert found["test_z_gain"] == pytest.approx(sum(gains) / 2)
    assert found["seeds_more_uniform_z"] == sum(gain > 0 for gain in gains)
    aligned = [
        run_result(run).metrics["alignment"] for run in groups["soft", "silo"] + groups["FedAlignUniform", "silo"]
    ]
    assert found["seeds_no_worse_aligned"] == (aligned[0] <= aligned[2]) + (aligned[1] <= aligned[3])
