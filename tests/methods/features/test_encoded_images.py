"""Images are encoded once; what a client keeps of them gives the vectors that are clustered and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from shoal.methods.contract.base import Client, Server
from shoal.methods.contract.message import Tensors
from shoal.methods.features import landmark_offsets
from shoal.methods.features.centre_clustering import BEGINNINGS, CENTRES, GRAND_MEAN
from shoal.methods.features.components import BLOCKS
from shoal.methods.features.space import LANDMARKS, MEAN, OFFSET_MEAN, PROJECTION, SCALE, SPECTRAL, in_space
from shoal.methods.features.vectors import FEATURES, PROJECTED, SITE_OFFSET
from shoal.models.frozen import frozen_encoder

LAYERS = "efficientnet-lite0-layers"
CLIENTS = 2


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """Counts the images that a method encodes from now on."""

    def count(method: Any) -> list[int]:
        numbers: list[int] = []
        encode = method.source.of
        monkeypatch.setattr(method.source, "of", lambda x: numbers.append(len(x)) or encode(x))
        return numbers

    return count


def held(world: Any, client: int, round: int, memory: Tensors | None = None, *, every: int) -> Client:
    """A client that holds nothing back."""
    return replace(world.client(client, round, memory, every), validation=world.samples(torch.arange(0)))


def kept_of(client: Client, first: int) -> Tensors:
    """What a client keeps whose first samples are held back."""
    return client.memory | {PROJECTED: client.memory[PROJECTED][first:]}


def run(world: Any, method: Any, rounds: int) -> tuple[Server, dict[int, Tensors]]:
    server = world.start(method, CLIENTS)
    memory: dict[int, Tensors] = {}
    for number in range(1, rounds + 1):
        updates = []
        for client in range(CLIENTS):
            own = held(world, client, number, memory.get(client), every=CLIENTS)
            update = method.client_update(method.broadcast(server, client), own)
            if update.memory is not None:
                memory[client] = update.memory
            updates.append(replace(update, client=client))
        server = method.aggregate(server, iter(updates))
    return server, memory


@pytest.mark.long
@pytest.mark.parametrize("sites", ["ignore", "centre"])
def test_with_components_a_client_keeps_these(
    world: Any, client_list: Any, counted: Callable[[Any], list[int]], sites: str
) -> None:
    method = world.method("fedkmeans", encoder=LAYERS, components=3, space="directions", sites=sites)
    encoded = counted(method)
    server, memory = run(world, method, BLOCKS + 4)
    assert sum(encoded) == world.spec.train
    assert FEATURES not in memory[1]
    assert memory[1][PROJECTED].shape == (48, 3)
    clients = client_list([held(world, client, 9, memory[client], every=CLIENTS) for client in range(CLIENTS)])
    judged = method.judged_vectors(server, clients, world.evaluation())
    assert sum(encoded) == world.spec.train + world.spec.test, "the test part is encoded once, training images no more"
    x = torch.cat([world.samples().x(), world.data.computable(world.data.test_x)])
    features = frozen_encoder(LAYERS)(x)
    expected = in_space(features, server.model, directions=True)
    if sites == "centre":
        for client in range(CLIENTS):
            own = torch.arange(client, world.spec.train, CLIENTS)
            mean = features[own].double().mean(0)
            expected[own] = in_space(features[own], server.model, directions=True, site_mean=mean)
    torch.testing.assert_close(torch.from_numpy(judged[:]), expected.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sites", ["ignore", "centre", "estimate"])
def test_what_clients_hold_back_is_judged_as_their_other_images_are(world: Any, client_list: Any, sites: str) -> None:
    method = world.method("fedkmeans", components=3, sites=sites)
    server, memory = run(world, method, BLOCKS + 4)
    server = replace(server, model=server.model | {BEGINNINGS: torch.ones(1, dtype=torch.float64)})
    offset = torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64)
    clients = [
        held(world, client, 9, memory[client] | {SITE_OFFSET: offset}, every=CLIENTS) for client in range(CLIENTS)
    ]
    everything = method.judged_vectors(server, client_list(clients), world.evaluation())[:]
    method.source._kept = None
    few = torch.arange(5)
    apart = [
        replace(own, train=own.train.take(torch.arange(5, 48)), validation=own.train.take(few), memory=kept_of(own, 5))
        for own in clients
    ]
    judged = method.judged_vectors(server, client_list(apart), world.evaluation())[:]
    torch.testing.assert_close(torch.from_numpy(judged), torch.from_numpy(everything), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_images_lose_the_offset_of_their_site_before_landmarks(
    world: Any, client_list: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landmark_offsets, "MOST_COST", 9.0)
    method = world.method("fedkmeans", encoder=LAYERS, components=3, space="directions", landmarks=8)
    server, memory = run(world, method, BLOCKS + 6)
    assert OFFSET_MEAN in server.model
    clients = client_list([held(world, client, 9, memory[client], every=CLIENTS) for client in range(CLIENTS)])
    judged = method.judged_vectors(server, clients, world.evaluation())
    offsets = torch.zeros(world.spec.train + world.spec.test, 3, dtype=torch.float64)
    for client in range(CLIENTS):
        assert memory[client][SITE_OFFSET].any()
        offsets[client : world.spec.train : CLIENTS] = memory[client][SITE_OFFSET]
    x = torch.cat([world.samples().x(), world.data.computable(world.data.test_x)])
    expected = in_space(frozen_encoder(LAYERS)(x), server.model, directions=True, offset=offsets)
    torch.testing.assert_close(torch.from_numpy(judged[:]), expected.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.long
def test_without_components_a_client_keeps_its_features(world: Any, client_list: Any) -> None:
    method = world.method("fedkmeans", encoder=LAYERS)
    server, memory = run(world, method, 3)
    assert memory[0][FEATURES].shape == (48, 5120)
    assert PROJECTED not in memory[0]
    clients = client_list([held(world, client, 9, memory[client], every=CLIENTS) for client in range(CLIENTS)])
    judged = method.judged_vectors(server, clients, world.evaluation())
    expected = in_space(memory[1][FEATURES], server.model, directions=False).float()
    torch.testing.assert_close(torch.from_numpy(judged[:])[1 : world.spec.train : 2], expected)


@pytest.mark.long
def test_a_client_that_comes_late_projects_its_images_at_once(world: Any) -> None:
    method = world.method("fedkmeans", encoder=LAYERS, components=3)
    server, memory = run(world, method, BLOCKS + 2)
    late = held(world, 1, 9, {}, every=CLIENTS)
    update = method.client_update(method.broadcast(server, CLIENTS), late)
    assert update.memory.keys() == {PROJECTED}
    torch.testing.assert_close(update.memory[PROJECTED], memory[1][PROJECTED])


@pytest.mark.long
def test_the_projection_is_sent_once_to_each_client(world: Any) -> None:
    method = world.method("fedkmeans", encoder=LAYERS, components=3, landmarks=8, sites="ignore")
    before, _ = run(world, method, BLOCKS + 1)
    assert {MEAN, SCALE, PROJECTION} <= method.broadcast(before, 0).tensors.keys()
    server, memory = run(world, method, BLOCKS + 7)
    assert method.broadcast(server, 0).tensors.keys() == {LANDMARKS, SPECTRAL, CENTRES, BEGINNINGS, GRAND_MEAN}
    assert {MEAN, SCALE, PROJECTION} <= method.broadcast(server, CLIENTS).tensors.keys(), "a client that comes late"
    client = held(world, 0, 9, memory[0], every=CLIENTS)
    short, whole = (method.client_update(method.broadcast(server, to), client) for to in (0, CLIENTS))
    assert all(torch.equal(short.message.tensors[name], whole.message.tensors[name]) for name in whole.message.tensors)
