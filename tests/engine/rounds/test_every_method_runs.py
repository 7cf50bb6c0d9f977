"""Every family of methods through the real engine: interrupted and resumed, and on two slots, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.settings import places
from shoal.engine.workers.worker_processes import WorkerProcesses
from shoal.review.results.result import run_result
from tests.runs import go_on, numbers, stopped, straight

VALIDATED = {"kind": "iid", "clients": 4, "validation": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "cfl": {
        "method": {"name": "cfl", "criterion": "schedule", "schedule": [2], "gamma_max": 0.0},
        "partition": VALIDATED,
        "rounds": 4,
    },
    "ifca": {"method": {"name": "ifca", "models": 2}, "partition": VALIDATED},
    "local_only": {"method": {"name": "local_only"}, "partition": VALIDATED},
    "cfcl": {
        "method": {"name": "cfcl", "steps": 6, "tau_a": 3, "tau_p": 2, "reserve": 5, "budget": 4},
        "partition": {"kind": "labels_per_client", "labels": 2, "clients": 5},
        "model": {"encoder": "pooled-conv"},
        "rounds": 50,
    },
    "uifca": {
        "method": {"name": "uifca", "cluster_rounds": 2, "comm_rounds": 2, "steps": 3},
        "data": {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}},
        "partition": {"kind": "majority", "p": 0.5, "clients": 3},
        "rounds": 4,
    },
    "fedsimclr_kmeans": {
        "method": {"name": "fedsimclr_kmeans", "kmeans_rounds": 3, "components": 3},
        "rounds": 5,
    },
    "ifca_flows": {
        "method": {"name": "ifca_flows", "steps": 3},
        "data": {"name": "subspace", "limit": None, "options": {"samples": 60, "clusters": 3}},
        "partition": {"kind": "majority", "p": 1.0, "clients": 3},
    },
    "clustergan": {"method": {"name": "clustergan", "steps": 2, "critic_steps": 2, "width": 4}},
    "ssd": {"method": {"name": "ssd"}, "participation": {"fraction": 0.7}},
    "fedema": {"method": {"name": "fedema"}},
    "fedx": {"method": {"name": "fedx"}},
    "fedu2": {"method": {"name": "fedu2"}, "participation": {"fraction": 0.7}},
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_and_on_two_slots_the_same_bits(home: Path, small: Callable[..., Any], name: str) -> None:
    settings = small(**CASES[name])
    run = straight(settings)
    assert run_result(run).status == "finished"

    halted = stopped(settings, "round_finished", 2)
    with WorkerProcesses(2) as slots:
        go_on(halted, slots.call)
    assert numbers(halted) == numbers(run)


def test_cfcl_counts_what_devices_send_each_other(home: Path, small: Callable[..., Any]) -> None:
    run = straight(small(**CASES["cfcl"]))
    rounds = run.table("rounds")
    # 64 bytes an 8x8 image; reserves of 5 and pulls of 4 over every link, both ways, and 8 bytes for the round.
    links = 2 * 10
    assert rounds["bytes_d2d"].tolist()[:2] == [links * 5 * 64, links * (4 * 64 + 8)]
    by_device = run.table("clients").groupby("round")["bytes_d2d"].sum()
    assert by_device.tolist() == rounds["bytes_d2d"].tolist()


@pytest.mark.long
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("method", [{"name": "ssd"}, {"name": "cfcl", "steps": 4, "tau_a": 2}])
def test_natural_clients(home: Path, small: Callable[..., Any], method: dict[str, Any], labelled: bool) -> None:
    """Own images that come with their clients, without test part: a fifth of the training samples is held out."""
    generator = np.random.default_rng(0)
    clients = np.repeat([0, 1, 2], [40, 24, 10])
    arrays = {"train_x": generator.integers(0, 256, (74, 1, 8, 8), dtype=np.uint8)}
    if labelled:
        arrays["train_y"] = generator.integers(0, 2, 74)
    manifest = Manifest("mine", "image", (1, 8, 8), 2 if labelled else None, 74, 0, source="a test", licence="none")
    write_prepared(store_folder(places.store(), "mine"), manifest, arrays, {"client": clients})
    run = straight(
        small(
            method=method,
            data={"name": "mine", "limit": None},
            partition={"kind": "by_column", "column": "client"},
            rounds=20,
        )
    )
    metrics = run_result(run).metrics
    assert {"uniformity", "alignment", "effective_rank"} <= metrics.keys()
    assert ({"knn", "acc"} <= metrics.keys()) == labelled
    assert run.table("clients").groupby("client")["samples"].first().tolist() == [40, 24, 10]
