import math

import pytest
import torch

from shoal.engine.settings.run_settings import SettingsError, make_settings
from shoal.methods.contract.base import Context, LocalSettings, ModelSettings
from shoal.methods.fedpnp.fedpnp import FedPNP
from shoal.methods.fedpnp.pool import past_look_alikes
from shoal.methods.losses.contrastive import left_out_share

SURE = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


def past_negatives(y_a, y_b, mu):
    """Eq. 3: the pools of both views."""
    return ~past_look_alikes(torch.cat((y_a, y_b)), mu)


def test_samples_of_one_past_cluster_are_no_negatives():
    pool_a, pool_b = past_negatives(SURE, SURE, 0.999)
    expected = torch.tensor([[False, False, True], [False, False, True], [True, True, False]])
    assert torch.equal(pool_a, expected)
    assert torch.equal(pool_b, expected)


def test_a_negative_must_differ_in_both_views():
    # Sample 1 looks like sample 0 in view b only.
    y_a = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    y_b = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    pool_a, pool_b = past_negatives(y_a, y_b, 0.999)
    assert pool_a.tolist() == [[False, False], [True, False]]
    assert not pool_b.any()


def test_equal_labels_leave_no_negatives_and_a_large_mu_leaves_all():
    y = torch.full((4, 3), 1 / 3)
    assert not past_negatives(y, y, 0.999)[0].any()
    others = ~torch.eye(4, dtype=torch.bool)
    assert all(torch.equal(pool, others) for pool in past_negatives(y, y, 10.0))


@pytest.mark.parametrize("mu", [0.3, 1 / math.e])
def test_a_threshold_that_leaves_every_pool_empty_is_refused(mu):
    with pytest.raises(SettingsError, match=r"method\.mu"):
        make_settings({"method": {"name": "fedpnp", "mu": mu}})


def test_just_above_it_labels_that_differ_are_negatives():
    assert make_settings({"method": {"name": "fedpnp", "mu": 0.37}})
    pool, _ = past_negatives(SURE, SURE, 0.37)
    assert pool.tolist() == [[False, False, True], [False, False, True], [True, True, False]]


def test_the_share_that_is_left_out_counts_no_sample_with_itself():
    left_out = torch.eye(4, dtype=torch.bool).repeat(2, 1, 1)
    left_out[:, 0, 1] = left_out[:, 1, 0] = True
    left_out[0, 0, 2] = True
    assert left_out_share(left_out).item() == pytest.approx(5 / 24)


def test_labels_change_nothing(world, make_world):
    trained = []
    for here in (world, make_world(labels=False)):
        method = here.method("fedpnp") if here is world else unlabelled(here)
        _, updates = here.run(method, 2)
        trained.append(updates)
    for known, unknown in zip(*trained, strict=True):
        assert known.metrics == unknown.metrics
        assert all(torch.equal(t, unknown.message.tensors[name]) for name, t in known.message.tensors.items())


def unlabelled(world):
    """FedPNP on data without labels, told how many clusters there are."""
    known = ModelSettings("tiny-conv", clusters=4)
    context = Context(world.spec, known, LocalSettings(epochs=2, batch=32), seed=0, rounds=3)
    return FedPNP(FedPNP.Settings(), context)


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
    assert method.broadcast(server.next(server.model), 0).facts == {"alpha": 0.1}
    update = method.client_update(method.broadcast(server, 0), world.client())
    assert all(torch.equal(t, update.message.tensors[name]) for name, t in update.memory.items())
    assert not any(name.startswith("instance.") for name in update.memory)
