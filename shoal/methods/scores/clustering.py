"""Clustering scores: how well clusters found without labels agree with classes.

All of them are computed from counts of samples by cluster and class, which clients can count where their samples are:
their tables are added. None changes when clusters or classes are renamed, and there may be more clusters than classes.
scipy is imported inside the functions: a worker that scores nothing starts sooner.
"""

from __future__ import annotations

import numpy as np

from shoal.methods.clustering.agreement import counts, table_ari


def label_table(cluster: np.ndarray, labels: np.ndarray | None, clusters: int, classes: int) -> np.ndarray:
    """Return the counts of samples by cluster and label, int64 (clusters, classes + 1).

    The last column counts samples without a label.

    Args:
        cluster: int (n,), 0 to clusters - 1.
        labels: int (m,), 0 to classes - 1, of the first m samples; a negative one is missing. None: none has a label.
        clusters: c, empty ones included.
        classes: k, those without samples included.

    >>> label_table(np.array([0, 0, 1]), np.array([1, 1]), 2, 2).tolist()
    [[0, 2, 0], [0, 0, 1]]
    """
    column = np.full(len(cluster), classes)
    if labels is not None:
        column[: len(labels)] = np.where(labels < 0, classes, labels)
    return counts(cluster, column, clusters, classes + 1)


def crossed(truth: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Return the counts of samples by cluster and class, int64 (clusters, classes), of those that occur.

    Args:
        truth: classes, int (n,).
        cluster: clusters, int (n,).

    Raises:
        ValueError: no samples, or arrays of different length.
    """
    if truth.shape != cluster.shape or truth.ndim != 1 or not len(truth):
        raise ValueError(
            f"truth {truth.shape} and cluster {cluster.shape} must be one label a sample, of equal length > 0"
        )
    classes, column = np.unique(truth, return_inverse=True)
    clusters, row = np.unique(cluster, return_inverse=True)
    return counts(row, column, len(clusters), len(classes))


def table_accuracy(table: np.ndarray) -> float:
    """Return the share of samples that agree under the best one-to-one matching of clusters to classes (Kuhn 1955).

    Samples of unmatched clusters, where there are more clusters than classes, count as wrong.

    Args:
        table: counts of samples by cluster and class, int (c, k), at least one.

    >>> table_accuracy(np.array([[0, 1], [2, 1]]))
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    return float(table[linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def table_purity(table: np.ndarray) -> float:
    """Return the share of samples of the most frequent class of their cluster; several clusters may share a class.

    >>> table_purity(np.array([[1, 0], [1, 0], [0, 1], [0, 1]]))
    1.0
    """
    return float(table.max(1).sum() / table.sum())


def table_nmi(table: np.ndarray) -> float:
    """Return mutual information of rows and columns over the mean of both entropies; 1 where both have one alone."""
    from scipy.special import entr

    joint = table / table.sum()
    both = float(entr(joint.sum(1)).sum() + entr(joint.sum(0)).sum())
    if both == 0:
        return 1.0
    return max(0.0, 2 * (both - float(entr(joint).sum())) / both)


def table_scores(table: np.ndarray) -> dict[str, float]:
    """Return all four scores by name: acc, nmi, ari, purity; see `table_accuracy`."""
    return {
        "acc": table_accuracy(table),
        "nmi": table_nmi(table),
        "ari": table_ari(table),
        "purity": table_purity(table),
    }


def chance_ari(table: np.ndarray, draws: int, rng: np.random.Generator) -> float:
    """Return the largest ARI of some random orders of the clusters, drawn by the sizes of classes and clusters alone.

    Args:
        table: counts of samples by cluster and class.
        draws: number of random orders.
        rng: draws them.
    """
    from scipy.stats import random_table

    sizes = table.sum(0)[table.any(0)]
    fills = table.sum(1)[table.any(1)]
    if {1, table.sum()} & {len(sizes), len(fills)}:  # every order has the same ARI
        return table_ari(table)
    return max(table_ari(order) for order in random_table(sizes, fills).rvs(draws, random_state=rng))


def accuracy(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return `table_accuracy` of two arrays; see `crossed` for arguments and errors.

    >>> accuracy(np.array([0, 0, 1, 1]), np.array([7, 7, 7, 3]))
    0.75
    """
    return table_accuracy(crossed(truth, cluster))


def ari(truth: np.ndarray, cluster: np.ndarray) -> float:
    """Return `table_ari` of two arrays; see `crossed`."""
    return table_ari(crossed(truth, cluster))


def cluster_balance(sizes: np.ndarray) -> float:
    """Return the entropy of cluster sizes over log c: 1 for c equally full clusters, 0 where one has all samples.

    Args:
        sizes: of all clusters, empty ones included, int (c,). With c = 1 the balance is 1.
    """
    if len(sizes) == 1:
        return 1.0
    from scipy.special import entr

    return float(entr(sizes / sizes.sum()).sum() / np.log(len(sizes)))
