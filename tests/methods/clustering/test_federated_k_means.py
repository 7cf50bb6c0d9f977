"""Federated K-means is K-means of the pooled samples, for any distribution over clients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from shoal.methods.clustering.federated_k_means import (
    Moments,
    cluster_sums,
    moments,
    moved_centres,
    nearest,
    starting_centres,
    whitening,
)
from shoal.methods.contract.base import MethodError


def blobs(seed, n=240, clusters=4, width=3):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(clusters, width)) * 8
    y = rng.integers(clusters, size=n)
    return torch.from_numpy(middle[y] + rng.normal(size=(n, width))), y


def shares(n, clients, rng):
    """Who holds what, some more, some less."""
    return [torch.from_numpy(part) for part in np.split(rng.permutation(n), np.sort(rng.integers(1, n, clients - 1)))]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), clients=st.integers(1, 7))
def test_an_iteration_is_one_of_pooled_k_means(seed, clients):
    x, _ = blobs(seed)
    rng = np.random.default_rng(seed)
    start = x[torch.from_numpy(rng.choice(len(x), 4, replace=False))]
    parts = [cluster_sums(x[own], start[None]) for own in shares(len(x), clients, rng)]
    sums, counts, inertia = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
    moved = moved_centres(start[None], sums, counts)[0]
    pooled = KMeans(4, init=start.numpy(), n_init=1, max_iter=1, algorithm="lloyd", tol=0).fit(x.numpy())
    cluster, squared = nearest(x, start[None])
    assert counts.sum() == len(x)
    torch.testing.assert_close(inertia[0], squared.sum())
    by_hand = torch.stack([x[cluster[0] == k].mean(0) for k in range(4)])
    torch.testing.assert_close(moved, by_hand)
    # scikit-learn's labels after one iteration are of the moved centres.
    assert np.array_equal(nearest(x, moved[None])[0][0].numpy(), pooled.predict(x.numpy()))


def test_starts_go_on_side_by_side_without_touching_each_other():
    x, _ = blobs(1)
    starts = torch.stack([x[:4], x[4:8], x[8:12]])
    together = cluster_sums(x, starts)
    for k in range(3):
        one_start = cluster_sums(x, starts[k : k + 1])
        torch.testing.assert_close(together.sums[k], one_start.sums[0])
        torch.testing.assert_close(together.counts[k], one_start.counts[0])


def test_a_cluster_without_samples_stays():
    x = torch.tensor([[0.0], [1.0]])
    centres = torch.tensor([[[0.5], [9.0]]])
    found = cluster_sums(x, centres)
    assert moved_centres(centres, found.sums, found.counts)[0].flatten().tolist() == [0.5, 9.0]


def test_sums_of_too_few_samples_are_not_told():
    x = torch.tensor([[0.0], [1.0], [9.0]])
    found = cluster_sums(x, torch.tensor([[[0.0], [9.0]]]), min_points=2)
    assert found.counts.tolist() == [[2, 0]]
    assert found.sums.flatten().tolist() == [1.0, 0.0]
    assert found.inertia.item() == 1


def test_planted_clusters_are_found_from_the_clients_centres():
    x, y = blobs(3)
    local = torch.stack([x[torch.from_numpy(y) == k].mean(0) for k in range(4)] * 2)
    rng = np.random.default_rng(0)
    centres = starting_centres(local, torch.ones(8), 4, 5, rng)
    assert centres.shape == (5, 4, 3)
    found = nearest(x, centres)[0][0].numpy()
    assert len({(a, b) for a, b in zip(found, y, strict=True)}) == 4


def test_local_centres_count_by_the_samples_behind_them():
    local = torch.tensor([[0.0], [1.0], [10.0]])
    centres = starting_centres(local, torch.tensor([30.0, 10.0, 5.0]), 2, 1, np.random.default_rng(0))
    assert sorted(centres.flatten().tolist()) == pytest.approx([0.25, 10.0])


def test_too_few_local_centres_are_refused():
    with pytest.raises(MethodError, match="3 local centres"):
        starting_centres(torch.zeros(3, 2), torch.ones(3), 4, 1, np.random.default_rng(0))


def test_whitening_of_several_clients_is_that_of_all():
    x, _ = blobs(5, width=6)
    x[:, 5] = 2.5  # nothing varies there
    rng = np.random.default_rng(0)
    parts = [moments(x[own]) for own in shares(len(x), 4, rng)]
    whole = Moments(*(torch.stack(column).sum(0) for column in zip(*parts, strict=True)))
    mean, projection = whitening(whole, 6)
    assert projection.shape == (6, 5)
    white = (x - mean) @ projection
    torch.testing.assert_close(white.mT @ white / len(x), torch.eye(5).double(), atol=1e-8, rtol=0)
    mean, two = whitening(whole, 2)
    assert torch.equal(two, projection[:, :2])
    variances = torch.linalg.eigvalsh(torch.cov(x.double().T, correction=0)).flip(0)[:5]
    for power in (0.0, 0.3):
        partly = (x - mean) @ whitening(whole, 6, power)[1]
        found = torch.cov(partly.T, correction=0)
        torch.testing.assert_close(found, torch.diag(variances ** (1 - power)), atol=1e-6, rtol=1e-6)


def test_nothing_to_whiten_is_refused():
    nobody = moments(torch.zeros(0, 3))
    with pytest.raises(MethodError, match=r"method\.min_points"):
        whitening(nobody, 2)
    for constant in (0.0, 0.7):
        with pytest.raises(MethodError, match="collapsed"):
            whitening(moments(torch.full((50, 3), constant)), 2)
