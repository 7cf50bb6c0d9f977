"""Momentum, Adam and Yogi of the server, beside steps computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from shoal.methods.averaging.server_optimiser import MOMENTUM, VARIANCE, next_average, optimiser_step
from shoal.methods.averaging.vectors import parameter_count
from shoal.methods.contract.base import Message, MethodError, Server, Update
from shoal.methods.contract.context import AggregationSettings, ServerOptimiser
from shoal.methods.registry import BUILT_IN as METHODS

MOVED = [name for name, kind in METHODS.items() if kind.server_optimiser]


def steps(settings, *deltas):
    """Where a single number that begins at 1 is after rounds in which clients moved it by `deltas`."""
    x = torch.tensor([1.0])
    state = {}
    places = []
    for delta in deltas:
        x, state = optimiser_step(x, x + delta, state, settings, "w")
        places.append(float(x))
    return places


def test_momentum_by_hand():
    # m: 0.5, then 0.9 * 0.5 + 0.2 = 0.65.
    assert steps(ServerOptimiser("momentum", lr=2.0), 0.5, 0.2) == pytest.approx([2.0, 3.3])
    assert steps(ServerOptimiser("momentum"), 0.5, 0.2) == pytest.approx([1.5, 2.15]), "the rate is 1 by default"


def test_adam_by_hand():
    settings = ServerOptimiser("adam", lr=0.1, momentum=0.9)
    # m: 0.05, then 0.065; v: 0.99 * 1e-6 + 0.01 * 0.25 = 0.00250099, then 0.99 * that + 0.01 * 0.04 = 0.0028759801.
    first = 1 + 0.1 * 0.05 / (math.sqrt(0.00250099) + 0.001)
    second = first + 0.1 * 0.065 / (math.sqrt(0.0028759801) + 0.001)
    assert steps(settings, 0.5, 0.2) == pytest.approx([first, second], rel=1e-6)


def test_yogi_by_hand():
    settings = ServerOptimiser("yogi", lr=0.1, momentum=0.9)
    # v grows by 0.01 * 0.25 to 0.002501 where it was below, then by 0.01 * 0.04 to 0.002901; above 1e-6 it falls.
    first = 1 + 0.1 * 0.05 / (math.sqrt(0.002501) + 0.001)
    second = first + 0.1 * 0.065 / (math.sqrt(0.002901) + 0.001)
    assert steps(settings, 0.5, 0.2) == pytest.approx([first, second], rel=1e-6)
    _, state = optimiser_step(torch.zeros(1), torch.tensor([0.5]), {VARIANCE + "w": torch.ones(1)}, settings, "w")
    assert float(state[VARIANCE + "w"]) == pytest.approx(1 - 0.01 * 0.25)


def test_without_an_optimiser_the_mean_is_the_model_and_nothing_is_kept():
    server = Server({"w": torch.zeros(2)})
    update = Update(Message({"w": torch.tensor([1.0, 3.0])}, {"n": 4}), client=0)
    after = next_average(server, [update], AggregationSettings(), lambda: {"w": 2})
    assert after.model["w"].tolist() == [1.0, 3.0]
    assert after.state == {}


def moved(world, name, optimiser):
    """The states of a method before and after a round of two clients, and their plain mean."""
    averaging = world.method(name)
    start = world.start(averaging, 2)
    updates = []
    for k in (0, 1):
        own = replace(world.client(k, 2), id=k)
        updates.append(replace(averaging.client_update(averaging.broadcast(start, k), own), client=k))
    mean = averaging.aggregate(start, iter(updates))
    context = replace(averaging.context, aggregation=AggregationSettings(server=optimiser))
    after = type(averaging)(averaging.settings, context).aggregate(start, iter(updates))
    return start, mean, after


@pytest.mark.parametrize("name", ["fedavg", "fedsimclr"])
@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_a_methods_model_moves_by_hand(world, name, kind):
    settings = ServerOptimiser(kind, lr=0.5)
    start, mean, after = moved(world, name, settings)
    size = parameter_count(world.method("fedavg").network())
    for key in start.model:
        x = start.model[key].double()
        delta = mean.model[key].double() - x
        if kind == "momentum":
            expected = x + 0.5 * delta
        else:
            v = 0.99 * 1e-6 + 0.01 * delta**2
            if kind == "yogi":
                v = 1e-6 - 0.01 * delta**2 * torch.sign(1e-6 - delta**2)
            expected = x + 0.5 * 0.1 * delta / (v.sqrt() + 0.001)
        if name == "fedavg":  # one vector: parameters, then statistics
            expected[size:] = mean.model[key][size:].double()
        if MOMENTUM + key in after.state:
            torch.testing.assert_close(after.model[key].double(), expected, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(after.model[key], mean.model[key]), f"{key} is no parameter"
    assert any(key.startswith(MOMENTUM) for key in after.state)
    assert not after.model.keys() & after.state.keys()


def test_statistics_of_layers_are_averaged_as_ever(world):
    _, mean, after = moved(world, "fedsimclr", ServerOptimiser("adam"))
    statistics = [key for key in mean.model if "running" in key or "num_batches" in key]
    assert statistics
    for key in statistics:
        assert torch.equal(after.model[key], mean.model[key])
        assert MOMENTUM + key not in after.state


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_that_has_one_averaged_model_takes_it_and_the_others_refuse_it(world, name):
    method = world.method(name)
    context = replace(method.context, aggregation=AggregationSettings(server=ServerOptimiser("adam")))
    if name in MOVED:
        type(method)(method.settings, context)
        return
    with pytest.raises(MethodError, match=r"aggregation\.server.*set aggregation\.server\.name=none"):
        type(method)(method.settings, context)


def test_methods_that_average_move():
    assert {name for name, kind in METHODS.items() if kind.averages} <= set(MOVED)
