"""Descriptions of the metrics that methods share: their meaning, which way is better, and where they are shown.

A method may return metrics that are not described here: they are stored, logged and listed with a run like all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["comparison", "figure", "curves", "progress"]
"""A place in which a metric is shown: tables that compare runs, the figure over rounds, DVC's curves, progress."""


@dataclass(frozen=True)
class Metric:
    """The description of a metric.

    Attributes:
        name: its name in the metrics of `Method.evaluate` or in the label-free quality of a run.
        words: its meaning.
        better: which way is better; `neither` where it is no measure of quality by itself.
        unit: share (of samples, in [0, 1]), index (without unit, at most 1), or the thing that it counts.
        labels: whether it needs labels.
        shown: places in which it is shown, beside the list of all metrics of a run.
    """

    name: str
    words: str
    better: Literal["higher", "lower", "neither"]
    unit: str
    labels: bool = True
    shown: tuple[Place, ...] = ()


_EPSILON = "differential privacy at privacy.delta: what can be told of a client from"
METRICS = (
    Metric(
        "acc",
        "accuracy: samples given their class; of clusters, under the best one-to-one matching to classes, over the "
        "clients' training samples and the test part",
        "higher",
        "share",
        shown=("comparison", "figure", "curves", "progress"),
    ),
    Metric(
        "purity",
        "samples of the most frequent class of their cluster, over the clients' training samples and the test part",
        "higher",
        "share",
        shown=("comparison", "curves"),
    ),
    Metric("perplexity", "exponential of the mean loss of the next word", "lower", "words", shown=("comparison",)),
    Metric(
        "nmi",
        "normalised mutual information of clusters and classes, over the same samples as acc",
        "higher",
        "index",
        shown=("comparison", "figure", "curves", "progress"),
    ),
    Metric(
        "ari",
        "Rand index of clusters and classes, adjusted for chance, over the same samples as acc",
        "higher",
        "index",
        shown=("comparison", "figure", "curves", "progress"),
    ),
    Metric("knn", "accuracy of k nearest neighbours among the features", "higher", "share", shown=("comparison",)),
    Metric(
        "probe",
        "accuracy of a linear probe on the features, a logistic regression fitted to convergence",
        "higher",
        "share",
        shown=("comparison",),
    ),
    Metric(
        "neighbour_agreement",
        "nearest neighbours that share a cluster, beyond chance, in a space that the run did not train",
        "higher",
        "index",
        labels=False,
        shown=("comparison",),
    ),
    Metric("silhouette", "mean silhouette of the features", "higher", "index", labels=False, shown=("comparison",)),
    Metric(
        "site_nmi",
        "normalised mutual information of clusters and clients: 1 where every cluster is a client",
        "neither",
        "index",
        labels=False,
    ),
    Metric(
        "features_acc",
        "accuracy of K-means on the features of a method with a trained cluster head, on a draw of samples",
        "higher",
        "share",
    ),
    Metric(
        "group_gain",
        "gain of K-means on the samples over K-means on random ones without groups, in standard deviations of these",
        "neither",
        "deviations",
        labels=False,
    ),
    Metric(
        "site_offsets",
        "1 where sites differ by offsets, which were estimated and taken away",
        "neither",
        "share",
        labels=False,
    ),
    Metric("chance_acc", "accuracy of the run's clusters in random order", "neither", "share"),
    Metric(
        "balance",
        "entropy of cluster sizes over its maximum: right at 1 only where classes are equally frequent",
        "neither",
        "share",
        labels=False,
        shown=("curves",),
    ),
    Metric("loss", "mean loss of the local steps", "lower", "loss", labels=False, shown=("progress",)),
    Metric("epsilon_sent", f"{_EPSILON} all messages of one client, in this run", "neither", "epsilon", labels=False),
    Metric("epsilon_mean", f"{_EPSILON} the server states, in this run", "neither", "epsilon", labels=False),
    Metric(
        "epsilon_set_sent",
        f"{_EPSILON} all messages of one client, in all private runs on the data set so far",
        "neither",
        "epsilon",
        labels=False,
    ),
    Metric(
        "epsilon_set_mean",
        f"{_EPSILON} the server states of all private runs on the data set so far",
        "neither",
        "epsilon",
        labels=False,
    ),
)
"""All described metrics, in the order of tables."""
DESCRIBED = {metric.name: metric for metric in METRICS}


def shown_in(place: Place) -> tuple[Metric, ...]:
    """Return the metrics that are shown in a place, in order."""
    return tuple(metric for metric in METRICS if place in metric.shown)
