"""A federation of table rows in memory, and rounds of a method over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, Samples
from shoal.engine.messages.inspection import MAX_ABS_VALUE, check_answer
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method, Server
from shoal.methods.contract.context import Context, ModelSettings
from shoal.methods.contract.declared import fault
from shoal.methods.contract.message import Tensors
from shoal.methods.registry import METHODS


def uneven_owners(y: np.ndarray, clients: int, seed: int, beta: float = 0.1) -> np.ndarray:
    """Who holds each sample, int (n,): every class is dealt by shares from a Dirichlet distribution."""
    rng = np.random.default_rng(seed)
    owner = np.empty(len(y), dtype=int)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        cuts = (np.cumsum(rng.dirichlet([beta] * clients))[:-1] * len(rows)).astype(int)
        for client, part in enumerate(np.split(rows, cuts)):
            owner[part] = client
    return owner


def rings(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three rings around one point: K-means cuts them like a cake."""
    rng = np.random.default_rng(seed)
    y = np.arange(900) % 3
    angle = rng.uniform(0, 2 * np.pi, 900)
    radius = 1 + 3 * y + rng.normal(0, 0.15, 900)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), y


@dataclass
class Rows(Clients):
    """Clients that hold rows of one table."""

    folder: Path
    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray
    seed: int = 0
    memory: dict[int, Tensors] = field(default_factory=dict)
    round: int = 0

    def __post_init__(self) -> None:
        classes = len(np.unique(self.y))
        manifest = Manifest("rows", "vector", self.x.shape[1:], classes, len(self.x), 0, "made", "none")
        arrays = {"train_x": self.x.astype(np.float32), "train_y": self.y.astype(np.int64)}
        write_prepared(self.folder / "rows", manifest, arrays)
        self.data = DeviceData(open_prepared(self.folder / "rows"))

    def __len__(self) -> int:
        return int(self.owner.max()) + 1

    def __iter__(self) -> Iterator[Client]:
        return (self[client] for client in range(len(self)))

    def samples(self, rows: np.ndarray) -> Samples:
        index = torch.from_numpy(rows)
        return Samples(self.data, index)

    def __getitem__(self, client: int) -> Client:
        own = self.samples(np.flatnonzero(self.owner == client))
        streams = Streams(self.seed, self.round, client)
        return Client(client, own, self.samples(np.arange(0)), self.memory.get(client, {}), (), streams)

    def method(self, name: str, **settings: Any) -> Method:
        kind = METHODS[name]
        return kind(kind.Settings(**settings), Context(self.data.spec, ModelSettings(), seed=self.seed, rounds=80))

    def evaluation(self, *, final: bool = False) -> Evaluation:
        return Evaluation(self.data, self.samples(np.arange(len(self.x))), Streams(self.seed, 1), final, 50)

    def run(self, method: Method, rounds: int = 80) -> Server:
        """The state after so many rounds, or once the method has finished."""
        sizes = tuple(np.bincount(self.owner, minlength=len(self)).tolist())
        server = method.init_server(Federation(self.data.spec, sizes, Streams(self.seed)))
        while not server.finished and server.round < rounds:
            self.round = server.round + 1
            updates = []
            for client in self:
                if not len(client.train):
                    continue
                update = method.client_update(method.broadcast(server, client.id), client)
                check_answer(client.id, 1, update)
                form = method.declared(server, client.id, len(client.train))
                assert fault(update.message, form, MAX_ABS_VALUE) is None
                if update.memory is not None:
                    self.memory[client.id] = update.memory
                updates.append(replace(update, client=client.id))
            server = method.aggregate(server, iter(updates))
        return server

    def accuracy(self, method: Method, server: Server) -> float:
        return method.evaluate(server, self, self.evaluation())["acc"]
