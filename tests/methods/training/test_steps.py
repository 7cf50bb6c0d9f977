"""Clients trained in one computation: as client after client, whatever their sizes; one's failure is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.streams import Streams
from methods.base import Client, ClientError, Message, Update

SIZES = (96, 70, 48, 20, 96)
"""Samples of the clients: two share a number of steps, the last but one has a smaller batch."""
PLAIN = ("fedavg", "cfl", "ifca", "alone")
"""Methods whose encoder is for images in, scores out; the others use their own default."""


def cohort(world: Any, method: Any, sizes: tuple[int, ...] = SIZES) -> list[tuple[Message, Client]]:
    server = world.start(method, len(sizes))
    held = world.samples(torch.arange(84, 96))
    clients = [
        Client(k, world.samples(torch.arange(size).flip(0)), held, {}, (), Streams(0, 1, k))
        for k, size in enumerate(sizes)
    ]
    return [(method.broadcast(server, client.id), client) for client in clients]


def vector(update: Update) -> torch.Tensor:
    """All that an update's tensors say."""
    tensors = {**update.message.tensors, **(update.memory or {})}
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def apart(one: Update, other: Update, another: Update) -> float:
    """How far two updates are from each other, where the first and one of another client's data are 1 apart."""
    return float((vector(one) - vector(other)).norm() / (vector(one) - vector(another)).norm())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", {}),
        ("fedavg", {"optimiser": "adam", "lr": 1e-3, "weight_decay": 1e-3}),
        ("fedavg", {"encoder": "pooled-conv", "momentum": 0.0}),
        ("fedavg", {"adversaries": 2}),
        ("cfl", {"similarity": "both"}),
        ("ifca", {"models": 2}),
        ("alone", {}),
        ("fedsimclr", {}),
        ("ssd", {}),
        ("ssd", {"separation": "hard", "projector": False}),
    ],
)
def test_together_is_one_by_one(world, name, changes):
    changes = {"lr": 0.02, **changes}
    method = world.method(name, **({"encoder": "plain-conv"} if name in PLAIN else {}) | changes)
    work = cohort(world, method)
    alone = [method.client_update(*exchange) for exchange in work]
    together = method.cohort_update(work)
    for k, (one, other) in enumerate(zip(alone, together, strict=True)):
        assert isinstance(other, Update), other
        assert apart(one, other, alone[k - 2]) < 2e-3
        assert one.metrics == pytest.approx(other.metrics, rel=2e-3, abs=1e-5)
        assert one.message.facts == other.message.facts


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
    method = world.method("fedpnp", epochs=1)
    work = cohort(world, method, (64, 1, 64))
    found = method.cohort_update(work)
    assert isinstance(found[1], ClientError)
    for k in (0, 2):
        alone = method.client_update(*work[k])
        assert all(torch.equal(found[k].message.tensors[n], t) for n, t in alone.message.tensors.items())
