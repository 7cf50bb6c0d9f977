"""The pool of negatives: who is a neighbour, when the pool begins, and what its loss is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from shoal.methods.contract.base import ClientError
from shoal.methods.losses.contrastive import contrastive
from shoal_research.variants.negatives_pool import far_apart, find_neighbours

FEATURES = torch.randn(60, 12, generator=torch.Generator().manual_seed(5)).abs() * torch.linspace(0.1, 3, 12)


def test_neighbours_are_those_of_whitened_principal_components():
    found = find_neighbours(FEATURES, 0.1, 4)
    u = PCA(4, whiten=True, svd_solver="full").fit_transform(FEATURES.double().numpy())
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    np.testing.assert_allclose(found.direction @ found.direction.T, u @ u.T, atol=1e-5)
    similar = u @ u.T
    np.fill_diagonal(similar, -2)
    fifth = np.sort(similar, 1)[:, -5]  # a tenth of the 59 others
    np.testing.assert_allclose(found.reach, fifth, atol=1e-5)
    # Neighbours are so by either of the two.
    far = far_apart(found.direction, found.reach)
    expected = similar < np.minimum(fifth[:, None], fifth[None])
    np.fill_diagonal(expected, False)
    near_the_edge = np.abs(similar - np.minimum(fifth[:, None], fifth[None])) < 1e-5
    assert ((far.numpy() == expected) | near_the_edge).all()
    assert torch.equal(far, far.T)
    assert (60 - 1 - far.sum(1)).min() >= 5


def test_similarities_in_parts_are_those_at_once(monkeypatch):
    at_once = find_neighbours(FEATURES, 0.2, 6)
    monkeypatch.setattr("shoal_research.variants.negatives_pool.ROWS", 7)
    in_parts = find_neighbours(FEATURES, 0.2, 6)
    torch.testing.assert_close(in_parts.reach, at_once.reach)


@pytest.mark.parametrize("count", [2, 3, 25])
def test_few_samples_have_one_neighbour_at_least(count):
    found = find_neighbours(FEATURES[:count], 0.01, 4)
    far = far_apart(found.direction, found.reach)
    assert (far.sum(1) <= count - 2).all()
    assert found.direction.shape == (count, 4)


def test_features_that_do_not_vary_make_no_neighbours():
    found = find_neighbours(torch.ones(9, 5), 0.3, 4)
    assert torch.isfinite(found.direction).all()
    assert torch.equal(far_apart(found.direction, found.reach), ~torch.eye(9, dtype=torch.bool))
    # Constant directions beside others count for nothing.
    beside = torch.cat((FEATURES[:, :3], torch.full((60, 4), 2.5)), 1)
    here, there = find_neighbours(FEATURES[:, :3], 0.1, 16), find_neighbours(beside, 0.1, 16)
    torch.testing.assert_close(here.reach, there.reach)


@pytest.fixture
def method(world):
    return world.method("fedsimclr_pool", rounds=13, kmeans_rounds=3, components=3, neighbours=0.2, starts=2)


def test_the_pool_begins_after_its_share_of_training(method):
    assert [round for round in range(1, 11) if method.has_pool(round)] == [3, 4, 5, 6, 7, 8, 9, 10]


def test_before_the_pool_a_round_is_that_of_fedsimclr_with_k_means(world, method):
    reference = world.method("fedsimclr_kmeans", rounds=13, kmeans_rounds=3, components=3, starts=2)
    server = world.start(method)
    for round, same in ((2, True), (3, False)):
        state = replace(server, round=round - 1)
        client = world.client(0, round, every=3)
        ours, theirs = (m.client_update(m.broadcast(state, 0), client).message.tensors for m in (method, reference))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs) is same


@pytest.mark.parametrize("components", [17, 40])
def test_neighbours_are_of_sixteen_components_whatever_is_clustered(world, components):
    method = world.method("fedsimclr_pool", rounds=13, kmeans_rounds=3, components=components, neighbours=0.05)
    client = world.client(0, 7, every=3)
    steps = method.local_steps(method.broadcast(world.start(method), 0), client)
    _, direction, _ = steps.batch(next(iter(steps.batches)))
    assert direction.shape[1] == 16
    assert direction.any()


def test_the_loss_leaves_neighbours_out(world, method):
    server = replace(world.start(method), round=6)
    client = world.client(0, 7, every=3)
    steps = method.local_steps(method.broadcast(server, 0), client)
    positions = next(iter(steps.batches))
    x, direction, reach = steps.batch(positions)
    found = find_neighbours(method.own_features(method.broadcast(server, 0), client), 0.2, 3)
    torch.testing.assert_close(direction, found.direction[positions])
    torch.testing.assert_close(reach, found.reach[positions])

    def model(views):
        return steps.network(views)

    loss, numbers = method.step_loss(model, {}, (x, direction, reach), {})
    z_a, z_b = steps.network(x).z.chunk(2)
    far = far_apart(direction, reach)
    torch.testing.assert_close(loss, contrastive(z_a, z_b, method.settings.tau, (far, far)))
    assert loss < contrastive(z_a, z_b, method.settings.tau)
    pairs = len(positions) * (len(positions) - 1)
    assert numbers["pool_dropped"] == pytest.approx(1 - float(far.sum()) / pairs)


def test_the_share_left_out_is_logged(world, method):
    server = replace(world.start(method), round=8)
    metrics = method.client_update(method.broadcast(server, 0), world.client(0, 9, every=3)).metrics
    assert metrics.keys() == {"loss", "pool_dropped"}


def test_one_sample_is_refused_as_everywhere(world, method):
    server = replace(world.start(method), round=8)
    client = world.client(0, 9, every=3)
    one_sample = replace(client, train=client.train.take(torch.tensor([0])))
    with pytest.raises(ClientError, match="has 1 training samples; at least 2"):
        method.client_update(method.broadcast(server, 0), one_sample)
