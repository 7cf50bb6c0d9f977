from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from shoal.core.streams import Streams
from shoal.data.sets.prepared import DataSpec, Manifest, open_prepared, write_prepared
from shoal.data.views.view import DeviceData, Samples
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, ClientError, Context, Evaluation, MethodError, ModelSettings
from shoal.methods.fedpnp.pixels import KMeansPixels, KMeansSettings


def test_one_round_finds_planted_images(world):
    method = world.method("kmeans")
    server, _ = world.run(method, 1)
    assert server.finished
    assert server.tensors["centres"].shape == (4, 64)
    assert method.evaluate(server, None, world.evaluation())["acc"] == 1


def test_vectors(tmp_path: Path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (5 * np.eye(3, 6)[y] + rng.normal(0, 0.3, (60, 6))).astype(np.float32)
    write_prepared(tmp_path / "v", Manifest("v", "vector", (6,), None, 60, 0, "", ""), {"train_x": x})
    prepared = open_prepared(tmp_path / "v")
    data = DeviceData(prepared)
    train = Samples(data, torch.arange(60))
    method = KMeansPixels(KMeansSettings(), Context(prepared.spec, ModelSettings(clusters=3)))
    client = Client(0, train, train, {}, (), Streams(0, 1, 0))
    update = method.client_update(method.broadcast(method.init_server(None), 0), client)
    server = method.aggregate(method.init_server(None), [update])
    found = method.predictor(server)(train.x())
    assert found.embedding.shape == (60, 6)
    assert all(len(found.cluster[torch.from_numpy(y == k)].unique()) == 1 for k in range(3))
    metrics = method.evaluate(server, None, Evaluation(data, train, Streams(0), final=True))
    assert metrics["clusters_used"] == 3
    assert "acc" not in metrics
    data.train_x[3, 2] = float("nan")
    with pytest.raises(ClientError, match="not finite"):
        method.client_update(method.broadcast(server, 0), client)


def test_number_of_clusters_must_be_known():
    spec = DataSpec("bare", "vector", (4,), None, 10, 0)
    with pytest.raises(MethodError, match=r"model\.clusters"):
        Context(spec).clusters  # noqa: B018


def test_text_is_refused():
    with pytest.raises(MethodError, match="image and vector"):
        KMeansPixels(KMeansSettings(), Context(DataSpec("words", "text", (4,), 2, 10, 0)))


def test_threads_do_not_change_the_centres():
    x = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    runs = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            runs.append(kmeans(x, 5, np.random.default_rng(1), starts=1))
    assert np.array_equal(runs[0].centres, runs[1].centres)
    assert runs[0].inertia == runs[1].inertia
