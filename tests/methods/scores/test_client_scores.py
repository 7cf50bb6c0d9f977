"""What clients say of their own samples: who has a score, and what the weighted mean is."""

import pickle

import numpy as np

from shoal.core.streams import Streams
from shoal.methods.scores.baselines import compare_clusters
from shoal.methods.scores.client_scores import MIN_SAMPLES, ClientScores, MeanByClient, client_scores, means_by_client
from shoal.methods.scores.clustering import label_table
from shoal.methods.scores.verdict import verdict_of

KINDS = np.arange(60) % 3


def said(label, cluster, **changes):
    """Of samples in three blobs, by label."""
    x = (10 * np.eye(3, 5)[label] + np.random.default_rng(0).normal(size=(len(label), 5))).astype(np.float32)
    given = {"labels": label, "features": x, "space": x, "streams": Streams(0), **changes}
    return client_scores(label_table(cluster, label, 3, 3), cluster, **given)


def test_a_client_of_several_kinds_has_all_scores_and_sends_no_sample():
    client = said(KINDS, (KINDS + 1) % 3)
    apart, judged = client.scores.pop("silhouette")
    assert apart > 0.5
    assert judged == 60
    assert client.scores == {"neighbour_agreement": (1, 60), "knn": (1, 12), "probe": (1, 12)}
    assert len(pickle.dumps(client)) < 1_000


def test_a_site_of_one_kind_agrees_with_itself_and_not_beyond_chance():
    same = np.ones(40, dtype=int)
    assert said(same, same).scores == {"neighbour_agreement": (0, 40)}
    torn = said(same, KINDS[:40]).scores
    assert torn.keys() == {"neighbour_agreement", "silhouette"}
    assert torn["neighbour_agreement"][0] < 0.2


def test_a_small_client_is_only_counted_and_the_mean_weighs_the_samples_judged():
    small, large = (said(KINDS[:count], KINDS[:count]) for count in (MIN_SAMPLES - 1, MIN_SAMPLES))
    assert not small.scores
    assert small.table.sum() == MIN_SAMPLES - 1
    assert means_by_client([small, large])["silhouette_by_client"] == MeanByClient(large.scores["silhouette"][0], 1)
    halves = [ClientScores(small.table, {"knn": score}) for score in ((1.0, 30), (0.0, 10))]
    assert means_by_client([small, *halves]) == {"knn_by_client": MeanByClient(0.75, 2)}


def test_features_that_are_not_finite_and_samples_without_labels_are_not_judged():
    assert said(KINDS, KINDS, features=np.full((60, 2), np.nan)).scores.keys() == {"neighbour_agreement"}
    assert said(KINDS, KINDS, labels=None).scores.keys() == {"neighbour_agreement", "silhouette"}


def test_means_by_client_change_no_verdict():
    x = np.eye(3)[KINDS]
    bad = ClientScores(label_table(KINDS, None, 3, 0), {"neighbour_agreement": (-1.0, 60)})
    found = compare_clusters(KINDS, 3, {"columns": x}, ("columns", x), None, [bad], Streams(0))
    assert found.numbers["neighbour_agreement_by_client"] == -1
    assert verdict_of(found).word == "good"
