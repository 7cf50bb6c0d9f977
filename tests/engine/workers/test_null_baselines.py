"""Null baselines of real runs: an encoder sees a set's images once, and features are judged by a probe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.engine.settings import places
from shoal.engine.workers import null_baselines
from shoal.engine.workers.null_baselines import ENCODED_VARIABLE, ENCODER
from shoal.engine.workers.worker import Worker
from shoal.methods.scores.baselines import Comparison
from shoal.review.results.clusters import cluster_facts, keep_clusters
from tests.added_sets import add_set
from tests.planted_images import write_clients
from tests.runs import straight

Make = Callable[..., Any]
OWN = {
    "data": {"name": "mine", "limit": None},
    "partition": {"kind": "by_column", "column": "client", "clients": 0},
    "model": {"clusters": 3},
    "method": {"name": "kmeans"},
}


def comparison_of(settings: Any) -> Comparison:
    worker = Worker()
    run = straight(settings, worker.handle)
    assert keep_clusters(run, worker.handle)
    facts = cluster_facts(run)
    assert facts is not None
    assert facts.comparison is not None
    return facts.comparison


@pytest.mark.long
def test_images_are_encoded_once_for_all_runs_on_a_set(home: Path, small: Make, monkeypatch: Any) -> None:
    kept = home / "encoded"
    monkeypatch.setenv(ENCODED_VARIABLE, str(kept))
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store())
    first = comparison_of(small(**OWN))
    assert first.space == "joint"
    assert first.baseline_neighbours.keys() == {"pixels", "untrained", ENCODER}
    assert first.samples == 63
    assert len(list(kept.iterdir())) == 1
    assert not first.by_client, "all samples are in one place"

    encoded = []

    def refuse(name: str) -> Any:
        encoded.append(name)
        raise AssertionError("the images were encoded before")

    monkeypatch.setattr(null_baselines, "frozen_encoder", refuse)
    second = comparison_of(small(**OWN, seed=1))
    assert second.baseline_neighbours["pixels"] == first.baseline_neighbours["pixels"]
    assert second.baseline_neighbours[ENCODER] == first.baseline_neighbours[ENCODER]
    (path,) = kept.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(AssertionError):
        comparison_of(small(**OWN, seed=2))
    assert encoded, "a damaged file is not used"


def test_without_the_encoder_images_are_not_called_good(home: Path, small: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(null_baselines, "is_installed", lambda name: False)
    write_clients(home / "pictures")
    add_set(home / "pictures", "mine", places.store())
    found = comparison_of(small(**OWN))
    assert found.space == "pixels"
    assert ENCODER not in found.baseline_neighbours


@pytest.mark.long
def test_features_that_are_learnt_are_judged_by_a_probe_and_clusters_are_not(home: Path, small: Make) -> None:
    learnt = comparison_of(small(method={"name": "fedsimclr"}, rounds=1))
    assert learnt.probe is not None
    assert learnt.baseline_probes.keys() == {"pixels", "untrained"}
    assert learnt.baseline_probes["pixels"] == pytest.approx(0.93, abs=0.03)
    assert learnt.numbers["probe_of_run"] == learnt.probe
    clusters = comparison_of(small(method={"name": "kmeans"}))
    assert clusters.probe is None
    assert clusters.features_acc is None
    assert clusters.baseline_acc["pixels"] == learnt.baseline_acc["pixels"]


@pytest.mark.long
def test_an_untrained_head_is_worse_than_k_means_on_its_features(home: Path, small: Make) -> None:
    found = comparison_of(small(method={"name": "fedcc"}, rounds=1))
    assert found.acc is not None
    assert found.features_acc is not None
    assert found.features_acc > found.acc + 0.1
    assert {"knn_by_client", "probe_by_client"} < found.by_client.keys()


def test_a_table_is_compared_by_its_columns(home: Path, small: Make) -> None:
    points = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
    found = comparison_of(small(method={"name": "kfed"}, data=points, rounds=1))
    assert found.space == "columns"
    assert found.baseline_acc.keys() == {"columns", "standardised"}
    assert found.baseline_acc["columns"] == 1
    assert {mean.clients for mean in found.by_client.values()} == {3}
    assert found.by_client.keys() == {"neighbour_agreement_by_client", "silhouette_by_client"}


def test_a_column_of_text_weighs_as_much_as_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.cat([torch.arange(6.0)[:, None], torch.eye(3).repeat(2, 1)], 1)
    monkeypatch.setattr(null_baselines, "samples_at", lambda evaluation, rows: x)
    spec = SimpleNamespace(kind="vector", column_widths=(1, 3))
    opened = SimpleNamespace(prepared=SimpleNamespace(spec=spec))
    nothing = cast(Any, None)
    found = null_baselines.null_spaces(cast(Any, opened), nothing, torch.arange(6))
    assert found["standardised"].var(0).tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3], rel=1e-5)


def test_each_sample_belongs_to_its_client_and_test_samples_to_nobody() -> None:
    partition = SimpleNamespace(sample=np.array([1, 5, 0, 3]), client=np.array([0, 0, 1, 1]), clients=2)
    opened = SimpleNamespace(judged_here=(SimpleNamespace(test_x=np.zeros(2)), partition))
    assert null_baselines.site_of_rows(cast(Any, opened), np.arange(6)).tolist() == [1, 0, 1, 0, 2, 2]
