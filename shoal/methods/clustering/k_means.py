"""K-means by Lloyd's iterations with k-means++ starts: seeded, and the same whatever the number of threads."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.contract.context import MethodError


class Clustering(NamedTuple):
    """Centres float (c, d), the nearest centre of each sample int64 (n,), the sum of squared distances."""

    centres: np.ndarray
    cluster: np.ndarray
    inertia: float


def kmeans(
    x: np.ndarray, clusters: int, rng: np.random.Generator, *, starts: int = 10, weights: np.ndarray | None = None
) -> Clustering:
    """The best of several runs of K-means (Lloyd 1982; Arthur and Vassilvitskii 2007).

    Args:
        x: (n, d), floating point.
        clusters: c.
        rng: draws the starts.
        starts: runs; the one with the least sum of squared distances counts.
        weights: (n,), how much each sample counts; without them all count the same.

    Raises:
        MethodError: fewer samples than clusters, or values that are not finite.
    """
    from sklearn.cluster import KMeans  # here: it takes seconds to import, and not every worker clusters
    from sklearn.exceptions import ConvergenceWarning

    if len(x) < clusters:
        raise MethodError(f"K-means cannot find {clusters} clusters among {len(x)} samples: set model.clusters lower")
    if not np.isfinite(x).all():
        raise MethodError("K-means was given values that are not finite")
    model = KMeans(clusters, n_init=starts, random_state=int(rng.integers(2**31)))
    # One thread: sums over several come in another order, and centres then differ in their last bits. Duplicates
    # may leave fewer distinct points than clusters; that shows in `clusters_used`, and needs no warning.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, sample_weight=weights)
    return Clustering(model.cluster_centers_, model.labels_.astype(np.int64), float(model.inertia_))


def join_small(x: np.ndarray, found: Clustering, least: int) -> Clustering:
    """The clustering without clusters of fewer than `least` points: the smallest is joined to the nearest, and again.

    Centres stay the means of their points. One cluster is left at least, whatever its size.

    Args:
        x: (n, d), the points.
        found: their clustering.
        least: points.

    >>> x = np.array([[0.0], [1.0], [5.0]])
    >>> join_small(x, Clustering(np.array([[0.5], [5.0]]), np.array([0, 0, 1]), 0.5), 2).centres
    array([[2.]])
    """
    clusters = len(found.centres)
    sizes = np.bincount(found.cluster, minlength=clusters)
    if sizes.min() >= least or clusters == 1:
        return found
    centres, cluster, left = found.centres.copy(), found.cluster.copy(), list(range(clusters))
    while len(left) > 1 and sizes[left].min() < least:
        smallest = min(left, key=lambda k: sizes[k])
        left.remove(smallest)
        nearest = min(left, key=lambda k: float(np.square(centres[k] - centres[smallest]).sum()))
        cluster[cluster == smallest] = nearest
        sizes[nearest] += sizes[smallest]
        if sizes[nearest]:
            centres[nearest] = x[cluster == nearest].mean(0)
    number = {k: i for i, k in enumerate(left)}
    cluster = np.array([number[k] for k in cluster.tolist()], dtype=np.int64)
    centres = centres[left]
    return Clustering(centres, cluster, float(np.square(x - centres[cluster]).sum()))
