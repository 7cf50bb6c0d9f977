"""Clustering scores: how well clusters found without labels agree with classes.

All of them take two integer arrays of n labels, do not change when the labels of either side are renamed, and do not
need as many clusters as classes. scikit-learn and scipy are imported inside the functions: a worker that scores nothing
starts seconds sooner.
"""

from __future__ import annotations

import numpy as np


def accuracy(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return the share of samples that agree under the best one-to-one matching of clusters to classes (Kuhn 1955).

    Samples of unmatched clusters, where there are more clusters than classes, count as wrong.

    Args:
        truth: classes, int (n,).
        cluster: clusters, int (n,).

    Raises:
        ValueError: no samples, or arrays of different length.

    >>> accuracy(np.array([0, 0, 1, 1]), np.array([7, 7, 7, 3]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    table = _table(truth, cluster)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def purity(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return the share of samples of the most frequent class of their cluster; several clusters may share a class.

    See `accuracy` for arguments and errors.

    >>> purity(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 3]))
    1.0
    """
    table = _table(truth, cluster)
    return float(table.max(axis=0).sum() / table.sum())


def nmi(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return mutual information over the mean of both entropies; see `accuracy` for arguments and errors."""
    from sklearn.metrics import normalized_mutual_info_score

    _check(truth, cluster)
    return float(normalized_mutual_info_score(truth, cluster, average_method="arithmetic"))


def ari(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return the Rand index adjusted for chance (Hubert and Arabie 1985), 0 for random clusters; see `accuracy`."""
    from sklearn.metrics import adjusted_rand_score

    _check(truth, cluster)
    return float(adjusted_rand_score(truth, cluster))


def chance_ari(truth: np.ndarray, cluster: np.ndarray, draws: int, rng: np.random.Generator) -> float:
    """Return the largest ARI of some random orders of the clusters, drawn by the sizes of classes and clusters alone.

    Args:
        truth: classes, int (n,).
        cluster: clusters, int (n,).
        draws: number of random orders.
        rng: draws them.
    """
    from scipy.stats import random_table

    table = _table(truth, cluster)
    sizes, counts = table.sum(1), table.sum(0)
    if 1 in table.shape or len(truth) in table.shape:  # every order has the same ARI
        return ari(truth, cluster)
    tables = random_table(sizes, counts).rvs(draws, random_state=rng)
    pairs = _pairs(tables).sum((1, 2))
    by_chance = _pairs(sizes).sum() * _pairs(counts).sum() / _pairs(table.sum())
    most = (_pairs(sizes).sum() + _pairs(counts).sum()) / 2
    return float(((pairs - by_chance) / (most - by_chance)).max())


def _pairs(count: np.ndarray) -> np.ndarray:
    """Return the pairs among so many samples."""
    return count * (count - 1.0) / 2


def cluster_scores(truth: np.ndarray, cluster: np.ndarray) -> dict[str, float]:
    """Return all four scores by name: acc, nmi, ari, purity; see `accuracy` for arguments and errors."""
    return {
        "acc": accuracy(truth, cluster),
        "nmi": nmi(truth, cluster),
        "ari": ari(truth, cluster),
        "purity": purity(truth, cluster),
    }


def cluster_balance(cluster: np.ndarray, clusters: int) -> float:
    """Return the entropy of cluster sizes over log c: 1 for c equally full clusters, 0 where one has all samples.

    Args:
        cluster: int (n,), values in 0 .. c - 1.
        clusters: c. With c = 1 the balance is 1.
    """
    if clusters == 1:
        return 1.0
    from scipy.special import entr

    return float(entr(np.bincount(cluster, minlength=clusters) / len(cluster)).sum() / np.log(clusters))


def _table(truth: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Return counts (classes, clusters)."""
    _check(truth, cluster)
    from sklearn.metrics.cluster import contingency_matrix

    result: np.ndarray = contingency_matrix(truth, cluster)
    return result


def _check(truth: np.ndarray, cluster: np.ndarray) -> None:
    if truth.shape != cluster.shape or truth.ndim != 1 or not len(truth):
        raise ValueError(
            f"truth {truth.shape} and cluster {cluster.shape} must be one label a sample, of equal length > 0"
        )
