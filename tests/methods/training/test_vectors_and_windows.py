"""Methods of two views run on vectors and windows of series, and find what K-means on raw windows misses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from shoal.core.streams import Streams
from shoal.data.sets.prepared import Manifest, open_prepared, write_prepared
from shoal.data.views.augment import AugmentSettings
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, MethodError
from shoal.methods.contract.context import Context, ModelSettings
from shoal.methods.contract.message import Tensors
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores.clustering import accuracy
from shoal.models.encoders import OF_KIND

BUILD = [name for name, kind in METHODS.items() if kind.encoder == "trained" and "vector" in kind.kinds]
LENGTH = 48
WAVES = (((2, 1.0), (5, 0.6)), ((3, 1.0), (7, 0.6)), ((2, 0.6), (7, 1.0)), ((4, 1.0), (6, 0.7)))
"""Frequency and amplitude of the two waves of each kind of window."""
SITES = ((40, (0.7, 0.1, 0.1, 0.1)), (60, (0.1, 0.6, 0.2, 0.1)), (80, (0.1, 0.1, 0.5, 0.3)), (60, (0.25,) * 4))
"""Windows of each site, and the shares of the kinds among them."""


def waves(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows (n, 1, 48) of waves at random phase with noise, their kinds, and their sites."""
    rng = np.random.default_rng(seed)
    time = np.arange(LENGTH) / LENGTH
    kind = np.concatenate([rng.choice(4, size=count, p=shares) for count, shares in SITES])
    site = np.repeat(np.arange(len(SITES)), [count for count, _ in SITES])
    clean = [sum(a * np.sin(2 * np.pi * (f * time + rng.random())) for f, a in WAVES[k]) for k in kind]
    return (np.stack(clean)[:, None] + rng.normal(0, 0.3, (len(kind), 1, LENGTH))).astype(np.float32), kind, site


class Sites(Clients):
    """Clients that hold samples of one set in memory."""

    def __init__(self, folder: Path, kind: str, x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> None:
        manifest = Manifest("sites", kind, x.shape[1:], len(np.unique(y)), len(x), 0, "made", "none")  # type: ignore[arg-type]
        write_prepared(folder / "sites", manifest, {"train_x": x, "train_y": y.astype(np.int64)})
        self.data = DeviceData(open_prepared(folder / "sites"))
        self.owner = owner
        self.memory: dict[int, Tensors] = {}
        self.round = 0

    def __len__(self) -> int:
        return int(self.owner.max()) + 1

    def samples(self, rows: np.ndarray) -> Samples:
        index = torch.from_numpy(rows)
        return Samples(self.data, index)

    def __getitem__(self, client: int) -> Client:
        own = self.samples(np.flatnonzero(self.owner == client))
        none = self.samples(np.arange(0))
        return Client(client, own, none, self.memory.get(client, {}), (), Streams(0, self.round, client))

    def run(
        self, name: str, rounds: int, settings: dict[str, Any], local: dict[str, Any], **augment: Any
    ) -> dict[str, float]:
        """Return the metrics of the last evaluation, after so many rounds."""
        kind = METHODS[name]
        context = Context(
            self.data.spec,
            ModelSettings(kind.model_defaults.encoder),
            replace(kind.local_defaults, **local),
            AugmentSettings(**augment),
            rounds=rounds,
        )
        method = kind(kind.Settings(**settings), context)
        sizes = tuple(np.bincount(self.owner).tolist())
        clients = range(1 if method.pooled else len(self))
        server = method.init_server(Federation(self.data.spec, sizes, Streams(0)))
        for self.round in range(1, rounds + 1):
            updates = []
            for client in clients:
                update = method.client_update(method.broadcast(server, client), self[client])
                if update.memory is not None:
                    self.memory[client] = update.memory
                updates.append(replace(update, client=client))
            server = method.aggregate(server, iter(updates))
        evaluation = Evaluation(self.data, self.samples(np.arange(len(self.owner))), Streams(0, 1), True, 64, 200)
        judged = server.with_model(method.recalibrate(server, self, evaluation))
        return method.evaluate(judged, self, evaluation)


@pytest.fixture
def small(tmp_path: Path) -> Callable[[str], Sites]:
    """Two sites of 24 samples in two groups, as vectors or as windows of two channels."""

    def make(kind: str) -> Sites:
        rng = np.random.default_rng(0)
        y = np.arange(48) % 2
        shape = (48, 6) if kind == "vector" else (48, 2, 12)
        x = rng.normal(size=shape) + y.reshape(-1, *[1] * (len(shape) - 1)) * 3
        return Sites(tmp_path, kind, x.astype(np.float32), y, np.arange(48) // 24)

    return make


@pytest.mark.parametrize("kind", ["vector", "series"])
@pytest.mark.parametrize("name", BUILD)
def test_methods_of_two_views_run_on_vectors_and_windows(small: Callable[[str], Sites], name: str, kind: str) -> None:
    local = {"batch": 12, "epochs": 1}
    settings = {"fedsimclr_kmeans": {"kmeans_rounds": 3}, "cfcl": {"steps": 4, "tau_a": 2, "tau_p": 2}}.get(name, {})
    metrics = small(kind).run(name, 5, settings, local)
    assert np.isfinite(list(metrics.values())).all()
    assert {"uniformity", "alignment", "knn"} <= metrics.keys()
    assert metrics["knn"] >= 0.8, "two groups far apart stay apart"


def test_an_encoder_or_a_view_of_another_kind_is_refused(small: Callable[[str], Sites]) -> None:
    sites = small("vector")
    kind = METHODS["fedsimclr"]
    with pytest.raises(MethodError, match=r"model.encoder 'resnet18' does not take vector data: set .* of mlp"):
        kind(kind.Settings(), Context(sites.data.spec, ModelSettings("resnet18")))
    with pytest.raises(
        MethodError, match=r"augment.recipe is 'digits'; of vectors and windows there are auto, columns"
    ):
        sites.run("fedsimclr", 1, {}, {}, recipe="digits")
    image = replace(sites.data.spec, kind="image", shape=(1, 8, 8))
    with pytest.raises(MethodError, match=r"model.encoder 'mlp' does not take image data"):
        kind(kind.Settings(), Context(image, ModelSettings(OF_KIND["vector"])))


@pytest.mark.long
def test_windows_of_unequal_phase_are_clustered_where_k_means_on_raw_windows_is_not(tmp_path: Path) -> None:
    x, kind, site = waves(0)
    raw = accuracy(kind, KMeans(4, n_init=10, random_state=0).fit_predict(x.reshape(len(x), -1)))
    found = Sites(tmp_path, "series", x, kind, site).run("fedsimclr_kmeans", 16, {"kmeans_rounds": 6}, {})["acc"]
    assert raw < 0.55
    assert found > 0.9
