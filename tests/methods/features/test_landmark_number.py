"""The number of clusters by landmarks: groups of any shape are counted, in the space in which the method clusters."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from table_federation import Rows, rings, uneven_owners

from shoal.data.sets.synthetic import gaussian
from shoal.methods.clustering.client_samples import ClientSamples, Search
from shoal.methods.clustering.cluster_number import Clustering, compare_clusterings, draw_half, find_cluster_number
from shoal.methods.contract.context import MethodError
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.features.landmark_number import landmark_half, placed_landmarks
from shoal.methods.features.sampled_space import MAX_COLUMNS, method_space
from shoal.methods.features.space import in_space
from shoal.methods.scores.clustering import accuracy

QUICK = Search(min_clusters=2, max_clusters=6, repeats=2, starts=3)


def apart(x: np.ndarray, owner: np.ndarray) -> ClientSamples:
    order = np.argsort(owner, kind="stable")
    return ClientSamples(torch.from_numpy(x[order]).double(), torch.from_numpy(owner[order]), int(owner.max()) + 1)


@pytest.mark.long
@pytest.mark.parametrize("clusters", [3, 5])
def test_planted_clusters_are_counted(clusters: int) -> None:
    x, y = gaussian(clusters, 100, 10, 0)
    found = find_cluster_number(apart(x, uneven_owners(y, 5, 0)), QUICK, 0, collect=partial(landmark_half, 100))
    assert found.clusters == clusters


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_halves_agree_on_groups_that_k_means_cuts(seed: int) -> None:
    x, y = rings(seed)
    samples = apart(x, uneven_owners(y, 5, seed))
    cut = find_cluster_number(samples, QUICK, seed).tried[1]
    found = find_cluster_number(samples, QUICK, seed, collect=partial(landmark_half, 100)).tried[1]
    assert cut.clusters == found.clusters == 3
    assert cut.stability < 0.4
    assert found.stability > 0.8


def test_a_half_finds_its_clusters_without_the_other_half() -> None:
    x, y = rings(0)
    samples = apart(x, uneven_owners(y, 5, 0))
    rows = draw_half(samples, 0, 0)
    half = landmark_half(100, samples, rows, QUICK, 0, 0)
    moved = samples._replace(x=torch.where(rows[:, None], samples.x, samples.x + 50))
    again = landmark_half(100, moved, rows, QUICK, 0, 0)
    placed = [placed_landmarks(100, x.some(rows), QUICK, 0, 0) for x in (samples, moved)]
    assert torch.equal(*placed)
    assert torch.equal(half(3).centres, again(3).centres)


def test_both_halves_are_compared_each_in_its_own_space() -> None:
    x, y = rings(1)
    samples = apart(x, np.arange(900) % 3)
    truth = torch.nn.functional.one_hot(torch.from_numpy(y[np.argsort(np.arange(900) % 3, kind="stable")])).double()
    first = Clustering(samples._replace(x=truth), torch.eye(3).double())
    mirrored = Clustering(samples._replace(x=truth.flip(1)), torch.eye(3).double())
    assert compare_clusterings(first, mirrored) == (1.0, 1.0)


@pytest.mark.parametrize("changes", [{"components": 6, "space": "directions"}, {"standardise": True}, {}])
def test_the_space_is_that_of_the_run(tmp_path: Path, changes: dict[str, object]) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, np.linspace(0.5, 3, 20), (400, 20)) + 2
    rows = Rows(tmp_path, x, np.arange(400) % 3, np.arange(400) % 4)
    method = rows.method("fedkmeans", landmarks=40, **changes)
    assert isinstance(method, FeatureClustering)
    server = rows.run(method, rounds=int(method.settings.measured) + (2 if "components" in changes else 0))
    assert method.next_step(server) == "place"
    samples = apart(x.astype(np.float32), rows.owner)
    found = method_space(method, samples).x
    expected = in_space(samples.x, server.model, directions=method.settings.directions)
    torch.testing.assert_close(found, expected)


def test_of_many_columns_the_components_are_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    centres = rng.normal(0, 3, (3, MAX_COLUMNS + 30))
    y = np.arange(300) % 3
    x = centres[y] + rng.normal(0, 1, (300, MAX_COLUMNS + 30))
    rows = Rows(tmp_path, x, y, np.arange(300) // 3 % 4)
    method = rows.method("fedkmeans", landmarks=40)
    assert isinstance(method, FeatureClustering)
    samples = method_space(method, apart(x, rows.owner))
    assert samples.x.shape == (300, MAX_COLUMNS)
    half = landmark_half(40, samples, torch.ones(300, dtype=torch.bool), QUICK, 0, 0)
    z, found = half(3)
    order = np.argsort(rows.owner, kind="stable")
    assert accuracy(y[order], torch.cdist(z.x, found).argmin(1).numpy()) == 1


def test_too_few_samples_to_place_landmarks_are_told() -> None:
    x, _ = rings(0)
    with pytest.raises(MethodError, match=r"set choose\.max_clusters to"):
        find_cluster_number(apart(x[:40], np.arange(40) % 4), QUICK, 0, collect=partial(landmark_half, 100))
