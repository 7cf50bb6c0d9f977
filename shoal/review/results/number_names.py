"""The names that pages have for people, with units, in place of the keys of tables and metrics."""

from __future__ import annotations

import math

from shoal.engine.rounds.site_evaluation import BY_SITE
from shoal.methods.scores.client_scores import BY_CLIENT
from shoal.methods.scores.metrics import DESCRIBED
from shoal.methods.scores.verdict import in_words
from shoal.methods.scores.withheld import AT_LEAST, AT_MOST
from shoal.review.results.result import WAYS
from shoal.review.results.summary import IN_WORDS, duration, size

NAMES = {
    **IN_WORDS,
    **{f"bytes_{way}": f"sent {words}" for way, words in WAYS.items()},
    "ari": "ARI",
    "features_acc": "ACC of K-means on the features",
    "probe_of_run": "linear probe on the run's features, on a draw of samples",
    "acc_min": "ACC of the worst client",
    "acc_max": "ACC of the best client",
    "group_gain": "gain of K-means over samples without groups",
    "chance_acc": "ACC of random clusters",
    "site_nmi": "NMI of clusters and clients",
    "balance": "balance of cluster sizes",
    "clusters_used": "clusters with samples",
    "smallest_cluster": "share of the smallest cluster",
    "largest_cluster": "share of the largest cluster",
    "samples": "training samples",
    "seconds": "time of training",
    "loss_instance": "loss, instances",
    "loss_cluster": "loss, clusters",
    "loss_prototypes": "loss, prototypes",
    "pool_dropped": "negatives left out",
    "confidence": "mean confidence",
    "samples_withheld": "samples in counts that sites withhold",
}
MEANS = {BY_CLIENT: "mean by client", BY_SITE: "mean by site", AT_LEAST: "at least", AT_MOST: "at most"}
OF_BASELINES = ("neighbour_agreement", "acc")
"""Numbers that null baselines have too: the name of the baseline stands behind `_of_`."""


def name_of(key: str) -> str:
    """Return the name of a number for people.

    >>> name_of("bytes_d2d"), name_of("acc_of_pixels_by_site"), name_of("knn_by_client")
    ('sent between clients', 'ACC of K-means on pixels, mean by site', 'k-NN accuracy, mean by client')
    """
    if key in NAMES:
        return NAMES[key]
    for ending, words in MEANS.items():
        if key.endswith(ending):
            return f"{name_of(key.removesuffix(ending))}, {words}"
    number, _, space = key.partition("_of_")
    if space and number == "probe":
        return f"linear probe on {in_words(space)}"
    if space and number in OF_BASELINES:
        return f"{name_of(number)} of K-means on {in_words(space)}"
    return key.replace("_", " ")


def value_of(key: str, value: object) -> str:
    """Return a value of a table with its unit.

    >>> value_of("bytes_up", 956624.0), value_of("seconds", 0.4), value_of("loss", 4.39353), value_of("samples", 1288)
    ('956.6 kB', '0.4 s', '4.3935', '1,288')
    >>> value_of("acc", 1.0), value_of("acc_of_pixels", 1.0), value_of("knn_by_client", 1.0)
    ('1.0000', '1.0000', '1.0000')
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if key.startswith("bytes_"):
        return size(value)
    if key.startswith("seconds"):
        return duration(value)
    number = key.removesuffix(BY_CLIENT).removesuffix(BY_SITE).partition("_of_")[0]
    if value == int(value) and number not in DESCRIBED:
        return f"{int(value):,}"
    return f"{value:.4f}"
