"""Three blobs in four dimensions, and clients on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.base import Client, Context, Evaluation, Federation, Method, ModelSettings, Server, Tensors
from shoal.methods.registry import METHODS
from shoal.methods.scores.clustering import crossed, table_purity

D, K = 4, 3
CENTRES = np.array([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 4]])


@dataclass
class Federated:
    """Points on some clients, and rounds of a method on them in which perhaps not everyone takes part."""

    data: DeviceData
    owned: tuple[torch.Tensor, ...]

    def client(self, k: int, round: int = 1, memory: Tensors | None = None) -> Client:
        index = self.owned[k]
        samples = Samples(self.data, index)
        return Client(k, samples, samples.take(torch.arange(0)), memory or {}, (), Streams(0, round, k))

    def evaluation(self, round: int = 1) -> Evaluation:
        """Return an evaluation of all clients' samples and the test part."""
        index = torch.cat(self.owned).sort().values
        return Evaluation(self.data, Samples(self.data, index), Streams(0, round))

    def method(self, name: str = "uifca", lr: float = 3e-3, fraction: float = 1.0, **settings: object) -> Method:
        kind = METHODS[name]
        local = replace(kind.local_defaults, lr=lr, batch=20)
        clusters = ModelSettings(clusters=K)
        return kind(kind.Settings(**settings), Context(self.data.spec, clusters, local, seed=0, fraction=fraction))

    def play(
        self, method: Method, rounds: int, there: Sequence[Sequence[int]] | None = None
    ) -> tuple[Server, list[Tensors]]:
        """Rounds through the contract, of those that are there (else that the method draws); server and memories."""
        federation = Federation(self.data.spec, tuple(map(len, self.owned)), Streams(0))
        server = method.init_server(federation)
        memory: list[Tensors] = [{} for _ in self.owned]
        for round in range(1, rounds + 1):
            updates = []
            for k in method.sample_clients(server, federation) if there is None else there[round - 1]:
                update = method.client_update(method.broadcast(server, k), self.client(k, round, memory[k]))
                memory[k] = memory[k] if update.memory is None else update.memory
                updates.append(replace(update, client=k))
            server = method.aggregate(server, iter(updates))
            if server.finished:
                break
        return server, memory

    def purity(self, memory: list[Tensors]) -> float:
        """Of the assignments in the clients' memories."""
        found = torch.cat([m["assignment"] for m in memory]).numpy()
        return table_purity(crossed(self.data.train_y[torch.cat(self.owned)].numpy(), found))


def blobs(folder, clients: int, points: int, labels: bool = True) -> Federated:
    rng = np.random.default_rng(0)
    y = np.arange(clients * points) % K
    x = (CENTRES[y] + rng.standard_normal((len(y), D))).astype(np.float32)
    manifest = Manifest("blobs", "vector", (D,), K if labels else None, len(x), 0, "made here", "none")
    write_prepared(folder, manifest, {"train_x": x, "train_y": y.astype(np.int64) if labels else None})
    return Federated(DeviceData(open_prepared(folder)), torch.arange(clients * points).split(points))
