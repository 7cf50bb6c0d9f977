"""k-FED: a round of centres, none of them a single sample; and what IFCA on flows shares with it, the planted blobs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.streams import Streams
from shoal.methods.clustering.k_means import Clustering, join_small, kmeans
from shoal.methods.contract.base import ClientError
from shoal.methods.scores.clustering import crossed, table_purity


def labels_of(server, memory):
    return torch.cat([server.tensors[f"labels/{k}"][own["local"]] for k, own in enumerate(memory)])


def test_kfed_finds_blobs_and_may_begin_uifca(federated):
    server, memory = federated.play(federated.method("kfed"), 1)
    assert server.finished
    assert table_purity(crossed(federated.data.train_y.numpy(), labels_of(server, memory).numpy())) >= 0.98
    both = federated.method(init="kfed", cluster_rounds=2, comm_rounds=2, steps=2)
    server, memory = federated.play(both, 2)
    assert server.facts["phase"] == "learn"
    assert federated.purity(memory) >= 0.98


def test_kfed_is_judged_without_labels(unlabelled, client_list):
    method = unlabelled.method("kfed")
    server, memory = unlabelled.play(method, 1)
    clients = client_list([unlabelled.client(k, 1, own) for k, own in enumerate(memory)])
    metrics = method.evaluate(server, clients, unlabelled.evaluation())
    assert set(metrics) == {"clusters_used", "balance"}
    assert metrics["clusters_used"] == 3.0
    nobody = client_list([unlabelled.client(0)])
    assert method.evaluate(server, nobody, unlabelled.evaluation()) == {}


@pytest.mark.parametrize("name", ["kfed", "uifca"])
def test_no_centre_is_a_single_sample(federated, name):
    """Seven points around one centre and one far away, which K-means would give a cluster of its own."""
    method = federated.method(name, **({} if name == "kfed" else {"init": "kfed"}))
    whole = federated.client(0)
    first = torch.nonzero(whole.train.y() == 0).squeeze(1)
    other = torch.nonzero(whole.train.y() == 1).squeeze(1)[:1]
    client = replace(whole, train=whole.train.take(torch.cat((first, other))))
    start = method.init_server(federation_of(federated))
    update = method.client_update(method.broadcast(start, 0), client)
    points, centres = client.train.x(), update.message.tensors["centres"]
    assert torch.cdist(centres, points).min() > 1e-3
    sizes = torch.bincount(update.memory["local"], minlength=len(centres))
    assert sizes.min() >= 2
    assert sizes.sum() == len(points)
    for k in range(len(centres)):
        torch.testing.assert_close(centres[k], points[update.memory["local"] == k].mean(0))
    one_point = replace(whole, train=whole.train.take(torch.arange(1)))
    with pytest.raises(ClientError, match="1 training samples, and a centre of k-FED is the mean of at least 2"):
        method.client_update(method.broadcast(start, 0), one_point)
    if name == "uifca":
        return
    raw = federated.method(name, min_points=1)
    single = raw.client_update(raw.broadcast(start, 0), one_point).message.tensors["centres"]
    torch.testing.assert_close(single, one_point.train.x())


def federation_of(federated):
    from shoal.methods.contract.base import Federation

    return Federation(federated.data.spec, tuple(map(len, federated.owned)), Streams(0))


def test_small_clusters_are_joined_by_hand():
    """On a line: 0 alone goes to (1, 2), 9 alone to (7, 8); of least size 4 all become one."""
    x = np.array([[0.0], [1], [2], [7], [8], [9.5]])
    found = Clustering(np.array([[0.0], [1.5], [7.5], [9.5]]), np.array([0, 1, 1, 2, 2, 3]), 1.0)
    assert join_small(x, found, 1) is found
    joined = join_small(x, found, 2)
    assert joined.cluster.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(joined.centres, [[1.0], [49 / 6]])
    assert joined.inertia == pytest.approx(2 + x[3:].var() * 3)
    assert join_small(x, found, 4).cluster.tolist() == [0] * 6
    rng = np.random.default_rng(0)
    clustering = kmeans(x, 3, rng)
    assert join_small(x, clustering, 2).cluster.max() == len(join_small(x, clustering, 2).centres) - 1
