"""What clusters are worth beside nothing: null baselines on the same samples, and a score that needs no labels.

A clustering is compared with K-means on the raw samples, on an untrained encoder and on a frozen pretrained one, and
with its own clusters in random order. Where there are labels, the comparison is in ACC. Without labels, the score is
how often a sample's nearest neighbours are in its cluster, beyond chance, in a space that the run had no part in: the
frozen encoder's features of images where it is installed, else the raw samples.

Symbols in shapes: n samples, c clusters, d features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.clustering.k_means import kmeans
from shoal.methods.scores.clustering import accuracy

DRAWN = 2_000
"""Samples of the comparison, a seeded draw: encoding them takes seconds."""
NEIGHBOURS = 10
ORDERS = 20
"""Random orders over which the ACC of chance is averaged."""
STARTS = 5


@dataclass(frozen=True)
class Comparison:
    """A clustering beside null baselines, all on the same samples.

    Attributes:
        samples: how many were drawn.
        space: in which neighbours were looked for: the frozen encoder's name, or raw.
        neighbours: neighbour agreement of the run's clusters beyond chance: 1 at best, about 0 by chance.
        baseline_neighbours: the same of each baseline.
        acc: of the run's clusters; None without labels.
        chance_acc: of its clusters in random order.
        baseline_acc: of each baseline, by name.
    """

    samples: int
    space: str
    neighbours: float
    baseline_neighbours: Mapping[str, float]
    acc: float | None
    chance_acc: float | None
    baseline_acc: Mapping[str, float]


def compared(
    cluster: np.ndarray,
    clusters: int,
    spaces: Mapping[str, np.ndarray],
    judge: str,
    labels: np.ndarray | None,
    rng: np.random.Generator,
) -> Comparison:
    """Return a clustering beside K-means in each of some spaces.

    Args:
        cluster: of the run, int (n,).
        clusters: c.
        spaces: features (n, d) of the same samples, by name.
        judge: the space in which neighbours are looked for.
        labels: int (n,), or None.
        rng: draws starts and random orders.
    """
    baselines = {
        name: kmeans(x, clusters, rng, starts=STARTS).cluster for name, x in spaces.items() if len(x) >= clusters
    }
    near = nearest_neighbours(spaces[judge])
    agreement = {name: neighbour_agreement(found, near) for name, found in baselines.items()}
    acc = chance = None
    scores: dict[str, float] = {}
    if labels is not None:
        acc = accuracy(labels, cluster)
        chance = float(np.mean([accuracy(labels, rng.permutation(cluster)) for _ in range(ORDERS)]))
        scores = {name: accuracy(labels, found) for name, found in baselines.items()}
    return Comparison(len(cluster), judge, neighbour_agreement(cluster, near), agreement, acc, chance, scores)


def nearest_neighbours(x: np.ndarray) -> np.ndarray:
    """Return the `NEIGHBOURS` nearest other samples of each, int (n, k), by Euclidean distance.

    Args:
        x: (n, d), n at least 2.
    """
    from sklearn.neighbors import NearestNeighbors  # here: it takes seconds to import

    count = min(NEIGHBOURS, len(x) - 1)
    with threadpool_limits(1):
        found = NearestNeighbors(n_neighbors=count).fit(x).kneighbors(return_distance=False)
    near: np.ndarray = found
    return near


def neighbour_agreement(cluster: np.ndarray, near: np.ndarray) -> float:
    """Return how often neighbours share a cluster, beyond chance: (p - p0) / (1 - p0).

    p is the share of pairs of a sample and a neighbour in one cluster, and p0 what it would be with clusters of these
    sizes in random order. 0 where all samples are in one cluster.

    Args:
        cluster: int (n,).
        near: neighbours of each, int (n, k).

    >>> neighbour_agreement(np.array([0, 0, 1, 1]), np.array([[1], [0], [3], [2]]))
    1.0
    """
    sizes = np.bincount(cluster).astype(float)
    count = len(cluster)
    by_chance = float((sizes * (sizes - 1)).sum() / (count * (count - 1)))
    if by_chance >= 1:
        return 0.0
    same = float((cluster[near] == cluster[:, None]).mean())
    return (same - by_chance) / (1 - by_chance)
