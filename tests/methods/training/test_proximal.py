"""FedProx's term, beside steps computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shoal.methods.averaging.vectors import parameter_count
from shoal.methods.contract.base import MethodError
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.training.proximal import anchors, squared_distance


def test_the_distance_is_of_parameters_alone():
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    extra = anchors(network)
    assert set(extra) == {"proximal/0.weight", "proximal/0.bias", "proximal/1.weight", "proximal/1.bias"}
    with torch.no_grad():
        network[0].weight += 2.0
        network[1].running_mean += 5.0
    assert squared_distance(dict(network.named_parameters()), extra).item() == pytest.approx(16.0)


def trained(world, name, mu, **local):
    """What a client of a method sends after a round with this mu, and what it was sent."""
    reference = world.method(name, epochs=2, batch=16, optimiser="sgd", lr=0.05, **local)
    method = type(reference)(
        reference.settings, replace(reference.context, local=replace(reference.context.local, proximal=mu))
    )
    message = method.broadcast(world.start(method, 2), 0)
    return method.client_update(message, world.client(0, 1)), message


def test_two_steps_of_sgd_by_hand(world):
    """With the gradient g of the loss, w_2 = w_1 - lr (g(w_1) + mu (w_1 - w_0)): a second run stands in for g."""
    lr, mu = 0.05, 4.0
    method = world.method("fedavg", epochs=2, batch=96, optimiser="sgd", lr=lr, momentum=0.0)
    client = world.client(0, 1)
    message = method.broadcast(world.start(method, 2), 0)
    whole = message.tensors["weights"]
    size = parameter_count(method.network())  # statistics of layers lie behind the parameters
    start = whole[:size]

    def after(epochs, mu, begin):
        local = replace(method.context.local, epochs=epochs, proximal=mu)
        changed = type(method)(method.settings, replace(method.context, local=local))
        sent = replace(message, tensors={"weights": torch.cat((begin, whole[size:]))})
        return changed.client_update(sent, client).message.tensors["weights"][:size]

    one = after(1, mu, start)
    torch.testing.assert_close(one, after(1, 0.0, start), msg="the first step begins at the anchor")
    reference = after(1, 0.0, one)
    torch.testing.assert_close(after(2, mu, start), reference - lr * mu * (one - start), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["fedcc", "fedsimclr"])
def test_more_of_it_stays_nearer(world, name):
    def moved(mu):
        update, message = trained(world, name, mu)
        parts = [
            (t - message.tensors[k]).double().flatten()
            for k, t in update.message.tensors.items()
            if t.is_floating_point() and "running" not in k
        ]
        return float(torch.cat(parts).norm())

    free, pulled = moved(0.0), moved(10.0)
    assert pulled < 0.8 * free
    assert "proximal" in trained(world, name, 1.0)[0].metrics
    assert "proximal" not in trained(world, name, 0.0)[0].metrics


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_takes_it_or_says_why_not(world, name):
    method = world.method(name)
    context = replace(method.context, local=replace(method.context.local, proximal=0.1))
    if "proximal" in METHODS[name].local_options:
        type(method)(method.settings, context)
        return
    with pytest.raises(MethodError, match=r"local\.proximal.*set local\.proximal=0"):
        type(method)(method.settings, context)
