import math
import weakref

import pytest
import torch

from shoal.data.views.augment import RECIPES
from shoal.methods.contract.base import MethodError
from shoal.methods.contract.prediction import ShardPredictions
from shoal.methods.scores import evaluation
from shoal.methods.scores.evaluation import JudgedSamples, evaluate_features, evaluate_predictor
from shoal.methods.scores.representation import effective_rank, knn_accuracy
from tests.methods.scores.test_assignment import planted, quarters

ALWAYS = {"clusters_used", "balance"}
SCORES = {"acc", "nmi", "ari", "purity"}
FINAL = {"uniformity", "effective_rank"}
LABELLED = {"knn", "probe"}


def test_a_planted_clustering_is_perfect(world):
    metrics = evaluate_predictor(planted, world.evaluation())
    assert metrics == pytest.approx({"acc": 1, "nmi": 1, "ari": 1, "purity": 1, "clusters_used": 4, "balance": 1})


def test_kmeans_finds_it_on_features(world):
    metrics = evaluate_features(quarters, world.evaluation(), 4)
    assert metrics.keys() == ALWAYS | SCORES
    assert metrics["acc"] == 1
    assert evaluate_features(quarters, world.evaluation(), 7)["clusters_used"] == 7


def test_final_metrics(world):
    metrics = evaluate_predictor(planted, world.evaluation(final=True), RECIPES["none"])
    assert metrics.keys() == ALWAYS | SCORES | FINAL | LABELLED | {"alignment"}
    assert metrics["knn"] == metrics["probe"] == 1
    assert metrics["alignment"] == pytest.approx(0, abs=1e-6)
    held_out = planted(world.data.test_x.float() / 255).embedding
    assert metrics["effective_rank"] == pytest.approx(effective_rank(held_out), rel=1e-5)
    moved = evaluate_predictor(planted, world.evaluation(final=True), RECIPES["grey"])
    assert moved["alignment"] > 0.01


def test_the_batch_size_does_not_matter(world):
    small = evaluate_predictor(planted, world.evaluation(final=True, batch=7), RECIPES["none"])
    large = evaluate_predictor(planted, world.evaluation(final=True, batch=500), RECIPES["none"])
    assert small == pytest.approx(large, abs=1e-6)


def test_without_a_test_part_the_training_samples_are_split(make_world):
    world = make_world(test=False)
    metrics = evaluate_predictor(planted, world.evaluation(final=True))
    assert metrics.keys() == ALWAYS | SCORES | FINAL | LABELLED
    assert metrics["acc"] == metrics["knn"] == metrics["probe"] == 1


def test_without_labels_no_score(make_world):
    world = make_world(labels=False)
    metrics = evaluate_predictor(planted, world.evaluation(final=True), RECIPES["grey"])
    assert metrics.keys() == ALWAYS | FINAL | {"alignment"}


def test_what_kmeans_cannot_do_is_said(world):
    with pytest.raises(MethodError, match=r"model\.clusters"):
        evaluate_features(quarters, world.evaluation(), 1000)
    with pytest.raises(MethodError, match="finite"):
        evaluate_features(lambda x: quarters(x) * math.nan, world.evaluation(), 4)


@pytest.mark.parametrize("test", [True, False])
def test_of_many_samples_a_draw_judges(make_world, monkeypatch, test):
    """The same numbers as of all embeddings, at the positions that were drawn."""
    world = make_world(test=test)
    monkeypatch.setattr(evaluation, "MAX_LEARN", 30)
    monkeypatch.setattr(evaluation, "MAX_TEST", 9)
    monkeypatch.setattr(evaluation, "MAX_JUDGED", 7)
    noise = torch.linspace(0, 1, 64).view(1, 8, 8)

    def noisy(x):
        found = planted(x)
        return found._replace(embedding=torch.cat((found.embedding, (x.flatten(1) @ noise.flatten())[:, None]), 1))

    asked = world.evaluation(final=True, batch=11)
    metrics = evaluate_predictor(noisy, asked)
    judged = JudgedSamples.at_end(asked)
    n = len(asked.train)
    assert (len(judged.learn), len(judged.held_out), len(judged.some)) == (30, 9, 7)
    assert not set(judged.learn.tolist()) & {*judged.held_out.tolist(), *judged.some.tolist()}
    assert int(judged.learn.max()) < n
    assert (int(judged.held_out.min()) >= n) is test, "the test part judges, where there is one"
    x = torch.cat((asked.train.x(torch.arange(n)), world.data.test_x.float() / 255))
    y = torch.cat((asked.train.y(), world.data.test_y))
    h = noisy(x).embedding
    knn = knn_accuracy(h[judged.learn], y[judged.learn], h[judged.held_out], y[judged.held_out])
    assert metrics["knn"] == knn
    assert metrics["effective_rank"] == pytest.approx(effective_rank(h[judged.some]), rel=1e-4)
    assert evaluate_features(lambda x: noisy(x).embedding, asked, 4)["knn"] == knn
    assert metrics["acc"] == 1, "clusters are judged on all of them"


def test_shards_are_joined_in_order_and_none_is_kept():
    parts = torch.arange(12).split(4)
    rows = torch.arange(24.0).view(12, 2).split(4)
    kept = []

    def shards():
        for cluster, embedding in zip(parts, rows, strict=True):
            assert not [old for old in kept[:-1] if old() is not None], "kept shards hold memory of large tensors"
            chosen = embedding[::2].clone()
            kept.append(weakref.ref(chosen))
            yield ShardPredictions(cluster.clone(), 5, chosen)
            del chosen

    found = evaluation.joined(shards(), 12, 6)
    assert torch.equal(found.cluster, torch.arange(12))
    assert torch.equal(found.embedding, torch.cat([each[::2] for each in rows]))
    assert found.columns == 5


def test_missing_shards_are_noticed():
    shard = ShardPredictions(torch.arange(4), 5, torch.zeros(0, 0))
    with pytest.raises(AssertionError, match="all of its samples"):
        evaluation.joined(iter([shard]), 5, 0)
