"""Clients trained in one computation: as client after client, whatever their sizes; one's failure is its own.

Which methods are compared they say themselves: those of gradient steps, where `stackable` holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.contract.base import Client, ClientError, Message, ModelSettings, Update
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.training.steps import GradientMethod

SIZES = (96, 70, 48, 20, 96)
"""Samples of the clients: two share a number of steps, the last but one has a smaller batch."""
STEPPING = [name for name, kind in METHODS.items() if issubclass(kind, GradientMethod)]
ADAM = {"optimiser": "adam", "lr": 1e-3, "weight_decay": 1e-3}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", ADAM),
    ("fedavg", {"encoder": "pooled-conv", "momentum": 0.0}),
    ("cfl", {"permute": True}),
    ("ssd", {"gamma": 0.0, "delta": 0.0}),
    ("fedpnp", {"mu": 0.9}),
]
"""Further settings, beside those by default of every method."""
TRAINING = {"cfcl": {"selection": "none"}}
"""Settings with which clients take steps in the first round already."""
CONTINUING = ("single", "cfcl")
"""Methods whose optimiser continues over rounds."""


def method_of(world: Any, name: str, changes: dict[str, Any]) -> Any:
    """A method on a small encoder, or on the one of its own defaults, by SGD unless `changes` say otherwise."""
    own = METHODS[name].model_defaults.encoder
    encoder = {} if own == ModelSettings().encoder else {"encoder": own}
    return world.method(name, **{"lr": 0.02, "optimiser": "sgd", **encoder, **TRAINING.get(name, {}), **changes})


def cohort(world: Any, method: Any, sizes: tuple[int, ...] = SIZES) -> list[tuple[Message, Client]]:
    server = world.start(method, len(sizes))
    validation = world.samples(torch.arange(84, 96))
    clients = [
        Client(k, world.samples(torch.arange(size).flip(0)), validation, {}, (), Streams(0, 1, k))
        for k, size in enumerate(sizes)
    ]
    return [(method.broadcast(server, client.id), client) for client in clients]


def next_round(work: list[tuple[Message, Client]], updates: list[Any]) -> list[tuple[Message, Client]]:
    """The same messages to the same clients in round 2, with the memory that round 1 left."""
    return [
        (message, replace(client, memory=update.memory or {}, streams=replace(client.streams, round=2)))
        for (message, client), update in zip(work, updates, strict=True)
    ]


def vector(update: Update) -> torch.Tensor:
    """All that an update's tensors say."""
    tensors = {**update.message.tensors, **(update.memory or {})}
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def apart(one: Update, other: Update, another: Update) -> float:
    """How far two updates are from each other, where the first and one of another client's data are 1 apart."""
    return float((vector(one) - vector(other)).norm() / (vector(one) - vector(another)).norm())


def compare(one_by_one: list[Any], together: list[Any]) -> None:
    assert any(not torch.equal(vector(a), vector(b)) for a, b in zip(one_by_one, together, strict=True)), (
        "the same bits: was anything computed together?"
    )
    for k, (one, other) in enumerate(zip(one_by_one, together, strict=True)):
        assert isinstance(other, Update), other
        assert (one.memory or {}).keys() == (other.memory or {}).keys()
        assert apart(one, other, one_by_one[k - 2]) < 2e-3
        assert one.metrics == pytest.approx(other.metrics, rel=2e-3, abs=1e-5)
        assert one.message.facts == other.message.facts


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in STEPPING if name not in CONTINUING), *VARIANTS])
def test_together_is_one_by_one(world, name, changes):
    """In round 1, and in round 2 with what each client remembers: past models, targets."""
    check_together(world, name, changes)


@pytest.mark.parametrize("name", ["ssd", "fedbyol"])
def test_together_is_one_by_one_with_smaller_last_batches(world, name, monkeypatch):
    monkeypatch.setattr("shoal.methods.ssd.self_supervised.FEW_CLIENTS", 0)
    check_together(world, name, {})


def check_together(world: Any, name: str, changes: dict[str, Any]) -> None:
    method = method_of(world, name, changes)
    if not method.stackable:
        pytest.skip("says that its networks cannot be stacked")
    work = cohort(world, method)
    one_by_one = [method.client_update(*exchange) for exchange in work]
    compare(one_by_one, method.cohort_update(work))
    if one_by_one[0].memory:
        work = next_round(work, one_by_one)
        compare([method.client_update(*exchange) for exchange in work], method.cohort_update(work))


@pytest.mark.long
def test_only_equal_companions_go_together(world):
    """A client that joins in round 2 has no past model."""
    method = method_of(world, "fedpnp", {})
    first = cohort(world, method, (96, 96, 96, 96))
    second = next_round(first, [method.client_update(*exchange) for exchange in first])
    work = [second[0], second[1], first[2], second[3]]
    compare([method.client_update(*exchange) for exchange in work], method.cohort_update(work))


@pytest.mark.parametrize("name", CONTINUING)
def test_clients_whose_optimiser_continues_are_trained_one_after_another(world, name):
    method = method_of(world, name, ADAM)
    work = cohort(world, method, (96, 70))
    for _ in range(2):
        one_by_one = [method.client_update(*exchange) for exchange in work]
        for one, other in zip(one_by_one, method.cohort_update(work), strict=True):
            assert torch.equal(vector(one), vector(other))
        work = next_round(work, one_by_one)


def test_a_client_that_cannot_be_trained_leaves_the_others_alone(world):
    method = world.method("fedavg", encoder="plain-conv")
    work = cohort(world, method, (96, 1, 64))
    found = method.cohort_update(work)
    assert isinstance(found[1], ClientError)
    assert "client 1" in str(found[1])
    pair = method.cohort_update([work[0], work[2]])
    for k, other in ((0, pair[0]), (2, pair[1])):
        assert torch.equal(found[k].message.tensors["weights"], other.message.tensors["weights"])


def test_a_loss_that_is_not_finite_is_its_clients_alone(world):
    method = world.method("fedavg", encoder="plain-conv")
    work = cohort(world, method, (96, 96, 64))
    broken = replace(work[1][0], tensors={"weights": torch.full_like(work[1][0].tensors["weights"], torch.nan)})
    found = method.cohort_update([work[0], (broken, work[1][1]), work[2]])
    assert isinstance(found[1], ClientError)
    assert "not finite" in str(found[1])
    for k in (0, 2):
        assert apart(found[k], method.client_update(*work[k]), found[2 - k]) < 2e-3


def test_methods_without_one_computation_go_client_by_client(world):
    name = next(name for name, kind in METHODS.items() if not issubclass(kind, GradientMethod) and kind.pooled)
    method = world.method(name, epochs=1)
    work = cohort(world, method, (64, 1, 64))
    found = method.cohort_update(work)
    assert isinstance(found[1], ClientError)
    for k in (0, 2):
        update = method.client_update(*work[k])
        assert all(torch.equal(found[k].message.tensors[n], t) for n, t in update.message.tensors.items())


def test_a_target_keeps_its_own_statistics_in_one_computation(world):
    """The momentum target is asked in training mode: its BatchNorm counts the batches of its own client."""
    method = method_of(world, "fedbyol", {})
    work = cohort(world, method, (96, 70, 48))
    for (_, client), update in zip(work, method.cohort_update(work), strict=True):
        counts = {int(t) for name, t in update.memory.items() if name.endswith("num_batches_tracked")}
        assert counts == {2 * (len(client.train) // 32)}
