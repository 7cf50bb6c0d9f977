"""A set of 8x8 grey images in four planted classes, and clients on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.base import (
    Client,
    Clients,
    Context,
    Evaluation,
    Federation,
    Method,
    ModelSettings,
    Server,
    Tensors,
    Update,
)
from shoal.methods.registry import METHODS

TRAIN, TEST, CLASSES = 96, 32, 4
QUICK = {
    "cfcl": {"steps": 60, "tau_a": 6, "tau_p": 6, "batch": 16},
    "clustergan": {"steps": 20, "width": 8, "critic_steps": 1},
    "ifca_flows": {"steps": 10, "width": 4, "blocks": 1},
    "uifca": {"cluster_rounds": 5, "comm_rounds": 1, "steps": 4, "width": 4, "blocks": 1},
}
"""Settings that spare tests time, also those of its variants; a method that is not named here has its defaults."""


def quick_settings(kind: type[Method]) -> dict[str, Any]:
    """Return the settings that spare tests time, for a method or the one of which it is a variant."""
    names = [getattr(parent, "name", "") for parent in kind.__mro__]
    return next((QUICK[name] for name in names if name in QUICK), {})


def planted(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose bright quarter is their class."""
    y = np.arange(n) % CLASSES
    x = rng.integers(0, 60, (n, 1, 8, 8))
    for image, label in zip(x, y, strict=True):
        image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 180
    return x.astype(np.uint8), y.astype(np.int64)


@dataclass
class World:
    """One prepared set on the CPU."""

    data: DeviceData

    @property
    def spec(self) -> Any:
        return self.data.spec

    def samples(self, index: torch.Tensor | None = None) -> Samples:
        index = torch.arange(self.spec.train) if index is None else index
        return Samples(self.data, index)

    def client(self, id: int = 0, round: int = 1, memory: Tensors | None = None, every: int = 1) -> Client:
        """Every `every`-th sample, from sample `id` on."""
        own = self.samples(torch.arange(id % every, self.spec.train, every))
        validation = self.samples(torch.arange(self.spec.train - 12, self.spec.train))
        return Client(id, own, validation, memory or {}, (), Streams(0, round, id))

    def method(self, name: str, *, rounds: int = 3, encoder: str = "", **changes: Any) -> Method:
        """A registered method; `changes` are of local settings, or of the method's where it has such a field."""
        kind = METHODS[name]
        changes = {"epochs": 2, "batch": 32} | quick_settings(kind) | changes
        own = {k: v for k, v in changes.items() if k in kind.Settings.__dataclass_fields__}
        local = {k: v for k, v in changes.items() if k not in own}
        context = Context(
            self.spec,
            ModelSettings(encoder or "tiny-conv"),
            replace(kind.local_defaults, **local),
            seed=0,
            rounds=rounds,
        )
        return kind(kind.Settings(**own), context)

    def start(self, method: Method, clients: int = 1) -> Server:
        return method.init_server(Federation(self.spec, (self.spec.train,) * clients, Streams(0)))

    def at_training(self, method: Method) -> tuple[Server, Tensors]:
        """The state before the first round that trains, and the memory of the one client by then."""
        server, memory, _ = self.rounds(method, self.start(method), getattr(method, "warmup_rounds", 0))
        return server, memory

    def rounds(self, method: Method, server: Server, rounds: int) -> tuple[Server, Tensors, list[Update]]:
        """So many rounds of one client that holds everything: its state, the client's memory and its updates."""
        memory: Tensors = {}
        updates: list[Update] = []
        for round in range(1, rounds + 1):
            update = method.client_update(method.broadcast(server, 0), self.client(0, round, memory))
            memory = memory if update.memory is None else update.memory
            server = method.aggregate(server, iter([replace(update, client=0)]))
            updates.append(update)
        return server, memory, updates

    def evaluation(self, *, final: bool = False, batch: int = 50) -> Evaluation:
        return Evaluation(self.data, self.samples(), Streams(0, 1), final, batch)

    def run(self, method: Method, rounds: int) -> tuple[Server, list[Update]]:
        """Rounds of one client that holds everything, those that only gather not counted."""
        before = getattr(method, "warmup_rounds", 0)
        server, _, updates = self.rounds(method, self.start(method), before + rounds)
        return server, updates[before:]


class ClientList(Clients):
    """Clients held in memory."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int) -> Client:
        return self.clients[client]


def write_world(folder: Path, *, test: bool = True, labels: bool = True) -> World:
    rng = np.random.default_rng(0)
    train_x, train_y = planted(rng, TRAIN)
    arrays = {"train_x": train_x, "train_y": train_y if labels else None}
    if test:
        test_x, test_y = planted(rng, TEST)
        arrays |= {"test_x": test_x, "test_y": test_y if labels else None}
    manifest = Manifest(
        "planted", "image", (1, 8, 8), CLASSES if labels else None, TRAIN, TEST if test else 0, "made here", "none"
    )
    write_prepared(folder, manifest, arrays)
    return World(DeviceData(open_prepared(folder)))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("sets") / "planted")


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[..., World]:
    return lambda **options: write_world(tmp_path / "planted", **options)


@pytest.fixture
def client_list() -> Callable[[list[Client]], Clients]:
    return ClientList
