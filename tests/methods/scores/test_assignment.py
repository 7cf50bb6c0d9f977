"""The cluster of every sample, as evaluation judged it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shoal.core.streams import Streams
from shoal.methods.contract.base import Method, MethodError, Prediction
from shoal.methods.registry import BUILT_IN as METHODS
from shoal.methods.scores.assignment import assign_samples, assignment_of, nearest_centres
from shoal.methods.scores.clustering import crossed, table_scores
from shoal.methods.scores.evaluation import features_only
from shoal.methods.scores.quality import MAX_SAMPLES, silhouette


def quarters(x):
    """Mean brightness of each quarter (n, 4): where the class was planted."""
    return F.avg_pool2d(x, 4).flatten(1)


def planted(x):
    soft = (20 * quarters(x)).softmax(1)
    return Prediction(soft.argmax(1), soft, quarters(x))


def test_each_sample_has_its_planted_cluster(world):
    found = assign_samples(planted, world.evaluation())
    truth = torch.cat((world.data.train_y, world.data.test_y))
    assert torch.equal(found.cluster, truth)
    assert found.clusters == 4
    assert torch.allclose(
        found.confidence, planted(torch.cat((world.samples().x(), held_out_images(world)))).soft.amax(1)
    )
    assert found.features.shape == (len(truth), 4)
    assert found.centres is None


def held_out_images(world):
    return world.data.test_x.float() / 255


def test_features_are_clustered_by_kmeans_with_a_margin(world):
    found = assign_samples(features_only(quarters), world.evaluation(), clusters=4)
    truth = torch.cat((world.data.train_y, world.data.test_y))
    assert table_scores(crossed(truth.numpy(), found.cluster.numpy()))["acc"] == 1
    means = torch.stack([found.features[found.cluster == k].mean(0) for k in range(4)])
    assert torch.allclose(found.centres, means, atol=1e-4)
    own = (found.features - found.centres[found.cluster]).norm(dim=1)
    assert torch.allclose(found.distance, own, atol=1e-5)
    others = torch.cdist(found.features, found.centres).sort(1).values[:, 1]
    assert torch.allclose(found.confidence, (others - own) / others, atol=1e-4)
    with pytest.raises(MethodError, match=r"model\.clusters"):
        assign_samples(features_only(quarters), world.evaluation())


def test_samples_of_clients_keep_the_cluster_their_client_holds(world):
    """Numbers are of the training set, of which some samples may be held by nobody."""
    some = replace(world.evaluation(), train=world.samples().take(torch.tensor([3, 10, 11, 40])))
    found = assign_samples(planted, some, own_clusters=(torch.tensor([40, 10]), torch.tensor([2, 3])))
    y = world.data.train_y
    assert found.cluster[:4].tolist() == [y[3], 3, y[11], 2]
    assert torch.equal(found.cluster[4:], world.data.test_y)
    assert found.confidence[1] < found.confidence[0]  # what the model itself gives that cluster


def test_margin():
    centres = torch.tensor([[0.0, 0.0], [0.0, 10.0], [100.0, 0.0]])
    points = torch.tensor([[0.0, 0.0], [0.0, 2.5], [0.0, 5.0], [0.0, 8.0]])
    found = nearest_centres(points, centres)
    assert found.cluster[[0, 1, 3]].tolist() == [0, 0, 1]
    assert found.confidence.tolist() == pytest.approx([1, 2 / 3, 0, 0.75])
    assert found.distance.tolist() == pytest.approx([0, 2.5, 5, 2])
    scaled = nearest_centres(1000 * points, 1000 * centres)
    assert scaled.confidence.tolist() == pytest.approx(found.confidence.tolist())
    # Assigned to another cluster than the nearest: no confidence, and the distance is to that cluster's centre.
    found = nearest_centres(points[:1], centres, torch.tensor([1]))
    assert (found.confidence.item(), found.distance.item()) == (0, 10)
    assert nearest_centres(points, centres[:1]).confidence.tolist() == [1] * 4
    assert nearest_centres(points, torch.zeros(2, 2)).confidence.tolist()[0] == 0  # two centres in one place


def gives_clusters(kind):
    """Whether a method can say the cluster of every sample: its server holds a model, learnt without labels."""
    return kind.predictor is not Method.predictor and not kind.learns_from_labels


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not gives_clusters(kind)])
def test_methods_without_clusters_of_samples_say_so(world, name):
    method = world.method(name)
    with pytest.raises(MethodError, match=r"labels|no model"):
        assignment_of(method, world.start(method, 2), None, world.evaluation())


# --- numbers without labels, calibrated on planted answers ------------------------------------------------------------


def test_silhouette_of_planted_clusters_is_high_and_of_random_ones_about_zero():
    rng = np.random.default_rng(0)
    truth = np.arange(900) % 3
    x = 10 * np.eye(3, 8)[truth] + rng.normal(0, 0.3, (900, 8))
    assert silhouette(x, truth, rng) > 0.9
    assert abs(silhouette(x, rng.integers(0, 3, 900), rng)) < 0.02
    noise = rng.normal(0, 1, (900, 8))
    assert silhouette(noise, rng.integers(0, 3, 900), rng) < 0.02
    merged = np.where(truth == 2, 1, truth)  # two planted groups in one cluster
    assert 0.3 < silhouette(x, merged, rng) < 0.8


def test_silhouette_draws_where_there_are_many():
    rng = np.random.default_rng(0)
    truth = np.arange(3 * MAX_SAMPLES) % 3
    x = 3 * np.eye(3, 4)[truth] + rng.normal(0, 1, (3 * MAX_SAMPLES, 4))
    first, again, other = (silhouette(x, truth, Streams(seed).numpy("q")) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first == pytest.approx(other, abs=0.02)


@pytest.mark.parametrize("cluster", [[0, 0, 0], [0, 1, 2]])
def test_silhouette_is_absent_where_it_is_not_defined(cluster):
    assert silhouette(np.eye(3), np.array(cluster), np.random.default_rng(0)) is None
    assert silhouette(np.full((4, 2), np.nan), np.array([0, 0, 1, 1]), np.random.default_rng(0)) is None
