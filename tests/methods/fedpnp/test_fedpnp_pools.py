import math

import pytest
import torch

from methods.base import MethodError
from methods.fedpnp.fedpnp import past_negatives, similarity

SURE = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def test_gaussian_similarity_is_the_kernel_on_unit_vectors():
    y = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    unit = y / y.norm(dim=1, keepdim=True)
    kernel = (-torch.cdist(unit, unit).pow(2) / 2).exp()
    torch.testing.assert_close(similarity(y, y, "gaussian"), kernel)
    assert similarity(y, y, "gaussian").diagonal().tolist() == pytest.approx([1.0] * 6)


def test_other_similarities():
    torch.testing.assert_close(similarity(SURE, SURE, "dot"), SURE @ SURE.T)
    assert similarity(SURE, SURE, "literal").min().item() == 1.0


@pytest.mark.parametrize("kind", ["gaussian", "dot"])
def test_samples_of_one_past_cluster_are_no_negatives(kind):
    pool_a, pool_b = past_negatives(SURE, SURE, 0.999, kind)
    expected = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    assert torch.equal(pool_a, expected)
    assert torch.equal(pool_b, expected)


def test_a_negative_must_differ_in_both_views():
    # Sample 1 looks like sample 0 in view b only.
    y_a = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    y_b = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    pool_a, pool_b = past_negatives(y_a, y_b, 0.999, "gaussian")
    assert pool_a.tolist() == [[False, False], [True, False]]
    assert not pool_b.any()


def test_equal_labels_leave_no_negatives_and_a_large_mu_leaves_all():
    y = torch.full((4, 3), 1 / 3)
    assert not past_negatives(y, y, 0.999, "gaussian")[0].any()
    others = ~torch.eye(4, dtype=torch.bool)
    assert all(torch.equal(pool, others) for pool in past_negatives(y, y, 10.0, "gaussian"))


def test_literal_similarity_refuses_an_always_empty_pool(world):
    with pytest.raises(MethodError, match="pool is empty"):
        world.method("fedpnp", similarity="literal")
    assert world.method("fedpnp", similarity="literal", mu=math.e)


def test_with_every_other_sample_a_negative_fedpnp_is_fedcc(world):
    """The limit mu -> infinity, bit for bit, in a round with a past model too."""
    pnp = world.method("fedpnp", mu=1e6, alpha=1.0, alpha_first=1.0)
    cc = world.method("fedcc", alpha=1.0)
    a, b = world.run(pnp, 2)[0], world.run(cc, 2)[0]
    assert a.tensors.keys() == b.tensors.keys()
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def test_alpha_of_the_round_and_the_past_model(world):
    method = world.method("fedpnp")
    server = world.start(method)
    assert method.broadcast(server, 0).facts == {"alpha": 2.0}
    assert method.broadcast(server.next(server.tensors), 0).facts == {"alpha": 0.1}
    update = method.client_update(method.broadcast(server, 0), world.client())
    assert all(torch.equal(t, update.message.tensors[name]) for name, t in update.memory.items())
    assert not any(name.startswith("instance.") for name in update.memory)
