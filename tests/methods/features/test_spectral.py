"""Landmarks: what leaves a client adds up to what pooled vectors give, and groups of any shape are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from table_federation import Rows, rings, uneven_owners

from shoal.methods.clustering.declared_sums import check_affinities
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message
from shoal.methods.features.space import LANDMARKS, SPECTRAL
from shoal.methods.features.spectral import (
    EVEN_TIES,
    NEIGHBOURS,
    SETS,
    affinities,
    affinity_sums,
    in_spectral_space,
    landmarks_among,
    spectral_projection,
)
from shoal.methods.scores.clustering import accuracy
from tests.conftest import one_quick

SEEDS = range(5)


@pytest.mark.parametrize("seed", one_quick(SEEDS))
def test_groups_that_k_means_cuts_are_found_as_on_pooled_rows(tmp_path: Path, seed: int) -> None:
    x, y = rings(seed)
    rows = Rows(tmp_path / "apart", x, y, uneven_owners(y, 5, seed), seed)
    pooled = Rows(tmp_path / "pooled", x, y, np.zeros(len(y), dtype=int), seed)
    k_means = rows.method("fedkmeans")
    assert rows.accuracy(k_means, rows.run(k_means)) < 0.6
    method = rows.method("fedkmeans", landmarks=100)
    apart = rows.accuracy(method, rows.run(method))
    assert apart > 0.95
    assert abs(apart - pooled.accuracy(method, pooled.run(method))) <= 0.01


@pytest.mark.long
def test_a_run_measures_places_and_ties_before_it_starts(tmp_path: Path) -> None:
    x, y = rings(0)
    rows = Rows(tmp_path, x, y, np.arange(900) // 3 % 4)
    method = rows.method("fedkmeans", standardise=True, landmarks=50)
    steps = []
    for rounds in range(6):
        server = rows.run(method, rounds)
        steps.append(method.next_step(server))
    assert steps[:4] == ["measure", "place", "tie", "start"]
    assert steps[-1] == "move"
    assert server.model[LANDMARKS].shape == (SETS, 50, 2)
    assert server.model[SPECTRAL].shape == (SETS, 50, 3)
    assert method.space_width(server) == SETS * 3
    assert len({float(each.sum()) for each in server.model[LANDMARKS]}) == SETS


def test_small_sites_place_no_landmarks(tmp_path: Path) -> None:
    """Their centres would be means over clusters; they take part in all else."""
    x, y = rings(0)
    owner = np.arange(900) % 4
    owner[:11] = 4
    owner[11:23] = 5
    rows = Rows(tmp_path, x, y, owner)
    method = rows.method("fedkmeans", landmarks=100)
    server = rows.run(method, rounds=0)
    assert method.next_step(server) == "place"
    sent = [method.client_update(method.broadcast(server, k), rows[k]).message.tensors for k in range(6)]
    assert [each["centres"].shape for each in sent[4:]] == [(SETS, 0, 2), (SETS, 3, 2)]
    assert rows.accuracy(method, rows.run(method)) > 0.95


def test_a_group_of_one_sample_becomes_no_landmark(tmp_path: Path) -> None:
    """A client sends zeros for it, with the count 0."""
    x, y = rings(0)
    rows = Rows(tmp_path, x[:80] + 100, y[:80], np.arange(80) % 2)
    method = rows.method("fedkmeans", landmarks=100)
    sent = method.client_update(method.broadcast(rows.run(method, 0), 0), rows[0]).message.tensors
    assert len({float(each.sum()) for each in sent["centres"]}) == SETS, "each set is found from other starts"
    none = sent["counts"] == 0
    assert none.any()
    assert torch.equal(none, (sent["centres"] == 0).all(2))
    assert float(rows.run(method, 1).model[LANDMARKS].min()) > 50


def test_new_samples_are_assigned_as_those_of_the_clients(tmp_path: Path) -> None:
    x, y = rings(1)
    rows = Rows(tmp_path, x, y, np.arange(900) // 3 % 4)
    method = rows.method("fedkmeans", landmarks=100)
    server = rows.run(method)
    own = method.assignment(server, rows, rows.evaluation()).cluster
    new, truth = rings(2)
    found = method.predictor(server)(torch.from_numpy(new)).cluster
    assert accuracy(truth, found.numpy()) > 0.95
    assert torch.equal(method.predictor(server)(torch.from_numpy(x)).cluster, own)


def test_sums_of_clients_are_those_of_all_vectors() -> None:
    z = torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    landmarks = torch.stack([z[:20], z[20:40]]) + 0.1
    parts = [affinity_sums(part, landmarks, min_points=1) for part in z.split(70)]
    whole = affinity_sums(z, landmarks, min_points=1)
    assert torch.allclose(sum(parts), whole)
    assert whole.sum((1, 2)).tolist() == pytest.approx([200, 200])
    assert torch.equal(affinity_sums(z, landmarks[1:], min_points=1)[0], whole[1])


def test_affinities_fall_with_the_distance_to_the_nearest_landmarks() -> None:
    landmarks = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [100.0]], dtype=torch.float64)
    found = affinities(torch.zeros(1, 1, dtype=torch.float64), landmarks)[0]
    squares = torch.arange(1, NEIGHBOURS + 1, dtype=torch.float64).square()
    assert torch.allclose(found[:NEIGHBOURS], (-squares / squares.mean()).softmax(0))
    assert found[NEIGHBOURS] == 0


def test_a_landmark_near_to_few_vectors_of_a_client_gets_no_sums() -> None:
    landmarks = torch.arange(12, dtype=torch.float64)[None, :, None]
    z = torch.tensor([[0.0], [0.1], [11.0]], dtype=torch.float64)
    (products,) = affinity_sums(z, landmarks, min_points=2)
    assert (products[:NEIGHBOURS, :NEIGHBOURS] > 0).all()
    assert not products[NEIGHBOURS:].any()
    assert not products[:, NEIGHBOURS:].any()


def test_landmarks_that_are_tied_lie_at_one_place() -> None:
    """Two groups of landmarks without ties between them: each becomes a point, far from the other."""
    z = torch.cat([torch.linspace(0, 1, 50), torch.linspace(9, 10, 50)]).double()[:, None]
    landmarks = torch.stack([z[::5], z[1::5]])
    projections = [spectral_projection(each, 2) for each in affinity_sums(z, landmarks, min_points=1)]
    places = in_spectral_space(z, landmarks, torch.stack(projections))
    assert torch.allclose(places.norm(dim=1), torch.ones(100, dtype=torch.float64))
    cosines = places @ places.T
    assert torch.allclose(cosines[:50, :50], torch.ones(50, 50, dtype=torch.float64), atol=1e-3)
    assert (cosines[:50, 50:].abs() < 0.1).all()


def test_the_last_eigenvector_counts_least() -> None:
    """Against the same projection in which all count alike: a fifth of the first, and powers of eigenvalues between."""
    (ties,) = affinity_sums(
        torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.randn(1, 30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        min_points=1,
    )
    ties += EVEN_TIES * ties.sum() / 30**2  # so that no row is 0, and what is added again changes little
    scale = ties.sum(1).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * ties * scale)
    values = values[-4:]
    alike = scale[:, None] * vectors[:, -4:] * values.rsqrt()
    counts = (spectral_projection(ties, 4).norm(dim=0) / alike.norm(dim=0)).tolist()
    steps = np.log(0.2) / np.log(float(values[0]))
    assert counts == pytest.approx((values**steps).tolist(), abs=0.01)
    assert counts[0] == pytest.approx(0.2, abs=0.01)
    assert counts[-1] == pytest.approx(1, abs=0.01)


def test_all_eigenvectors_count_where_groups_are_far_apart() -> None:
    ties = torch.block_diag(*[torch.ones(5, 5)] * 3).double()
    ties[4, 5] = ties[5, 4] = 1e-3
    lengths = spectral_projection(ties, 3).norm(dim=0)
    assert float(lengths.min() / lengths.max()) > 0.8


def test_a_landmark_without_ties_says_nothing() -> None:
    products = torch.zeros(6, 6, dtype=torch.float64)
    products[:5, :5] = 1
    projection = spectral_projection(products, 2)
    assert bool(torch.isfinite(projection).all())
    assert not projection[5].any()


def test_landmarks_lie_among_the_local_centres() -> None:
    local = torch.cat([torch.zeros(6, 2), torch.ones(6, 2) * 4]) + torch.arange(12)[:, None] * 1e-3
    found = landmarks_among(local, torch.ones(12), 2, np.random.default_rng(0))
    assert sorted(found[:, 0].round().tolist()) == [0, 4]
    assert torch.equal(landmarks_among(local, torch.ones(12), 12, np.random.default_rng(0)), local.double())


def test_too_few_local_centres_are_refused(tmp_path: Path) -> None:
    x, _ = rings(0)
    rows = Rows(tmp_path, x[:8], np.arange(8) % 3, np.arange(8) // 4)
    with pytest.raises(MethodError, match=r"set method\.landmarks to 0, or model\.clusters lower"):
        rows.run(rows.method("fedkmeans", landmarks=100))


@pytest.mark.parametrize(
    ("products", "words"),
    [([[1.0, 2.0], [0.0, 1.0]], "not symmetric"), ([[9.0, 0.0], [0.0, 9.0]], "expected at most 4, one a sample")],
)
def test_products_that_no_samples_give_are_refused(products: list[list[float]], words: str) -> None:
    sets = torch.stack([torch.eye(2), torch.tensor(products)]).double()
    assert words in str(check_affinities(Message({"products": sets}), samples=4))
    assert check_affinities(Message({"products": sets[:1]}), samples=4) is None


def test_a_lonely_landmark_takes_no_cluster_of_its_own() -> None:
    """Three groups that a few ties join, and a landmark of three samples that nothing joins to them."""
    ties = torch.block_diag(*[torch.ones(5, 5)] * 3, torch.tensor([[0.1]])).double()
    ties[4, 5] = ties[5, 4] = ties[9, 10] = ties[10, 9] = 0.05
    places = torch.nn.functional.normalize(spectral_projection(ties, 3), dim=1)
    cosines = places @ places.T
    for first in (0, 5, 10):
        assert (cosines[first : first + 5, first : first + 5] > 0.95).all()
        assert (cosines[first : first + 5, :15].abs() > 0.5).sum() == 25
