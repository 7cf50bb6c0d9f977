"""FedPNP with a judged pool, and as printed: the numbers by hand, and one step against its equations."""

import pytest
import torch

from shoal.methods.contract.base import Context, LocalSettings, ModelSettings
from shoal_research.variants.decoupled import decoupled_contrastive
from shoal_research.variants.pool_quality import JudgedFedPNP, pool_quality, pool_shares
from tests.methods.fedpnp.test_fedpnp_steps import pools_by_definition, settled_past
from tests.methods.one_step import (
    assert_trained,
    method_of_one_step,
    network_of,
    one_step,
    order,
    perturbed,
    stepped,
    views,
)


def decoupled_by_hand(a, b, tau, pools):
    """Eq. 5 as printed, anchor by anchor; anchors without negatives are left out."""
    a, b = (t / t.norm(dim=1, keepdim=True) for t in (a, b))
    means = []
    for own, other, pool in ((a, b, pools[0]), (b, a, pools[1])):
        terms = []
        for i in range(len(own)):
            rows = torch.nonzero(pool[i]).flatten()
            if len(rows):
                rest = (own[rows] @ own[i] / tau).exp().sum() + (other[rows] @ own[i] / tau).exp().sum()
                terms.append(rest.log() - own[i] @ other[i] / tau)
        means.append(sum(terms) / len(terms))
    return (means[0] + means[1]) / 2


def test_quality_of_the_pool_by_hand():
    # Left out: (0, 1), (1, 0) by both views, (0, 2) by view a. Of one class: 0 and 1, 2 and 3.
    left_out = torch.eye(4, dtype=torch.bool).repeat(2, 1, 1)
    left_out[:, 0, 1] = left_out[:, 1, 0] = True
    left_out[0, 0, 2] = True
    shares = pool_shares(left_out, torch.tensor([7, 7, 3, 3]))
    assert {name: round(float(share) * 24) for name, share in shares.items()} == {
        "pool_dropped": 5,
        "pairs_same": 8,
        "pairs_dropped_same": 4,
    }
    found = pool_quality({name: float(share) for name, share in shares.items()})
    assert found == pytest.approx({"pool_dropped": 5 / 24, "pool_precision": 4 / 5, "pool_recall": 4 / 8})
    nothing = {"pool_dropped": 0.0, "pairs_same": 0.2, "pairs_dropped_same": 0.0}
    assert pool_quality(nothing) == {"pool_dropped": 0.0, "pool_recall": 0.0}


def test_the_judged_pool_is_that_of_fedpnp(world):
    """The labels judge it and do nothing else."""
    judged = method_of_one_step(world, "fedpnp_judged", mu=0.9)
    plain = method_of_one_step(world, "fedpnp", mu=0.9)
    own = perturbed(world.start(plain).tensors, 4.0)
    memory = {name: t for name, t in own.items() if not name.startswith("instance.")}
    done = one_step(judged, world, 2, memory)
    same = one_step(plain, world, 2, memory)
    assert all(torch.equal(t, done.update.message.tensors[name]) for name, t in same.update.message.tensors.items())
    metrics = dict(done.update.metrics)
    pools = pools_by_definition(*settled_past(plain, done.client)(views(plain, done.client)).y.chunk(2), 0.9)
    y = done.client.train.y()[order(done.client)].tolist()
    n = len(y)
    pairs = [(i, j, bool(pool[i, j])) for pool in pools for i in range(n) for j in range(n) if i != j]
    dropped = [y[i] == y[j] for i, j, kept in pairs if not kept]
    alike = [not kept for i, j, kept in pairs if y[i] == y[j]]
    assert metrics.pop("pool_precision") == pytest.approx(sum(dropped) / len(dropped), rel=1e-5)
    assert metrics.pop("pool_recall") == pytest.approx(sum(alike) / len(alike), rel=1e-5)
    assert metrics == same.update.metrics


def test_without_labels_the_pool_is_not_judged(make_world):
    world = make_world(labels=False)
    local = LocalSettings(epochs=1, batch=32)
    method = JudgedFedPNP(JudgedFedPNP.Settings(), Context(world.spec, ModelSettings("tiny-conv", clusters=4), local))
    metrics = method.client_update(method.broadcast(world.start(method), 0), world.client()).metrics
    assert "pool_dropped" in metrics
    assert "pool_recall" not in metrics


def test_a_decoupled_step(world):
    method = method_of_one_step(world, "fedpnp_decoupled", mu=0.9)
    initial = world.start(method).tensors
    done = one_step(method, world, 1, {}, perturbed(initial, 4.0, seed=6))
    network = network_of(method, done.message.tensors)
    now = network(views(method, done.client))
    y_a, y_b = now.y.chunk(2)
    pools = pools_by_definition(y_a.detach(), y_b.detach(), 0.9)
    others = ~torch.eye(y_a.shape[1], dtype=torch.bool)
    entropies = sum(-(y.mean(0) * y.mean(0).log()).sum() for y in (y_a, y_b))
    loss = decoupled_by_hand(*now.z.chunk(2), 0.5, pools)
    loss = loss + 2.0 * (decoupled_by_hand(y_a.T, y_b.T, 1.0, (others, others)) - entropies)
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert_trained(done.update.message.tensors, stepped(network, loss))


def test_empty_pools_give_zero_with_finite_gradient():
    a = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    empty = torch.zeros(5, 5, dtype=torch.bool)
    loss = decoupled_contrastive(a, a.detach().flip(0), 0.5, (empty, empty))
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(a.grad).all()
