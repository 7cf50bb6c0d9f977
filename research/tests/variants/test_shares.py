"""Clusters equally full over the federation: the loss by hand, what is sent, and what the server makes of it."""

from dataclasses import replace

import pytest
import torch

from shoal.methods.contract.base import Message, Update
from shoal.methods.losses.contrastive import assignment_entropy
from shoal_research.variants.shares import (
    OTHERS,
    PART,
    SAMPLES,
    SHARES,
    entropy_among_others,
    even_shares,
    federation_shares,
)
from tests.methods.one_step import (
    assert_trained,
    client_of_one_batch,
    cluster_loss,
    method_of_one_step,
    network_of,
    nt_xent,
    one_step,
    stepped,
    views,
)

OWN = torch.tensor([0.1, 0.6, 0.2, 0.1])


def soft(seed):
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(seed)).mul(1.5).softmax(1)


def entropy_by_hand(y, others, part):
    shares = part * y.mean(0) + (1 - part) * others
    return -(shares * shares.log()).sum() / part


def test_the_entropy_is_that_of_client_and_others_together():
    y, part = soft(1), torch.tensor(0.25)
    found = entropy_among_others(y, OWN, part)
    assert found.item() == pytest.approx(entropy_by_hand(y, OWN, 0.25).item(), rel=1e-5)
    assert entropy_among_others(y, OWN, torch.tensor(1.0)).item() == pytest.approx(assignment_entropy(y).item())


def test_a_client_that_holds_what_others_lack_is_not_spread():
    """Alone it would be pulled to even clusters; beside others who fill the rest, the whole is even as it is."""
    logits = torch.tensor([4.0, -4.0, -4.0, -4.0]).repeat(6, 1).requires_grad_()
    others, part = torch.tensor([0.0, 1 / 3, 1 / 3, 1 / 3]), torch.tensor(0.25)

    def pull(entropy):
        (gradient,) = torch.autograd.grad(entropy, logits)
        return gradient.abs().max().item()

    beside = pull(entropy_among_others(logits.softmax(1), others, part))
    assert beside < pull(assignment_entropy(logits.softmax(1))) / 20
    assert beside < pull(entropy_among_others(logits.softmax(1), others[[3, 0, 1, 2]], part)) / 10, "one is empty"


@pytest.mark.parametrize("name", ["fedcc_federation", "fedpnp_federation"])
def test_a_step_by_hand(world, name):
    weight = {"fedcc_federation": {"alpha": 0.7}, "fedpnp_federation": {"alpha_first": 0.7, "mu": 2.0}}[name]
    method = method_of_one_step(world, name, **weight)
    server = world.start(method, 2)
    assert torch.equal(server.tensors[SHARES], even_shares(4))
    done = one_step(method, world, broadcast={**server.tensors, SHARES: OWN})
    sent = dict(done.message.tensors)
    part = len(done.client.train) / done.message.facts[SAMPLES]
    assert 0 < part < 1
    assert torch.equal(sent.pop(SHARES), OWN)
    network = network_of(method, sent)
    now = network(views(method, done.client))
    y_a, y_b = now.y.chunk(2)
    entropies = sum(entropy_by_hand(y, OWN, part) for y in (y_a, y_b))
    loss = nt_xent(*now.z.chunk(2), 0.5) + 0.7 * (nt_xent(y_a.T, y_b.T, 1.0) - entropies)
    assert done.update.metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert abs(loss.item() - (nt_xent(*now.z.chunk(2), 0.5) + 0.7 * cluster_loss(y_a, y_b)).item()) > 0.01
    assert not any(SHARES in metric for metric in done.update.metrics)
    trained = dict(done.update.message.tensors)
    torch.testing.assert_close(trained.pop(SHARES), ((y_a + y_b) / 2).mean(0).detach())
    assert SHARES not in (done.update.memory or {})
    assert_trained(trained, stepped(network, loss))


def test_the_server_has_the_mean_by_samples_and_predicts_by_the_network_alone(world):
    method = method_of_one_step(world, "fedcc_federation")
    server = world.start(method, 2)
    updates = [
        Update(Message({**server.tensors, SHARES: shares}, {"n": n}), client=client)
        for client, (shares, n) in enumerate([(OWN, 30), (even_shares(4), 10)])
    ]
    following = method.aggregate(server, updates)
    torch.testing.assert_close(following.tensors[SHARES], 0.75 * OWN + 0.25 * even_shares(4))
    assert following.facts == server.facts
    x = world.samples(torch.arange(6)).x()
    told = method.predictor(following)(x)
    assert torch.equal(
        told[0], method.predictor(replace(server, model={k: t for k, t in server.model.items() if k != SHARES}))(x)[0]
    )


def test_by_default_nothing_more_is_sent(world):
    method = method_of_one_step(world, "fedcc")
    done = one_step(method, world)
    assert SHARES not in done.message.tensors
    assert SAMPLES not in done.message.facts
    assert SHARES not in done.update.message.tensors


def test_shares_that_noise_has_moved_still_sum_to_one(world):
    client = client_of_one_batch(world)
    wrong = Message({SHARES: torch.tensor([-0.5, 1.0, 1.0, 0.0])}, {SAMPLES: 3})
    found = federation_shares(wrong, client, torch.device("cpu"))
    torch.testing.assert_close(found[OTHERS], torch.tensor([0.0, 0.5, 0.5, 0.0]))
    assert found[PART].item() == 1.0
    nothing = federation_shares(replace(wrong, tensors={SHARES: torch.zeros(4)}), client, torch.device("cpu"))
    assert torch.isfinite(nothing[OTHERS]).all()
