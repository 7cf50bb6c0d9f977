"""K-means by Lloyd's iterations with k-means++ starts: seeded, with the same result for any number of threads."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from shoal.methods.contract.context import MethodError


class Clustering(NamedTuple):
    """Centres float (c, d), the number of each sample's centre int64 (n,), and the sum of squared distances."""

    centres: np.ndarray
    cluster: np.ndarray
    inertia: float

    def counted(self) -> tuple[Tensor, Tensor]:
        """Return the centres (c, d), and how many samples each has (c,), as tensors, float64."""
        sizes = np.bincount(self.cluster, minlength=len(self.centres))
        return torch.from_numpy(self.centres).double(), torch.from_numpy(sizes).double()


def kmeans(
    x: np.ndarray, clusters: int, rng: np.random.Generator, *, starts: int = 10, weights: np.ndarray | None = None
) -> Clustering:
    """Return the best of several runs of K-means (Lloyd 1982; Arthur and Vassilvitskii 2007).

    Args:
        x: (n, d), floating point.
        clusters: c.
        rng: draws the starts.
        starts: number of runs; the one with the lowest sum of squared distances counts.
        weights: (n,), weight of each sample; None: all weigh the same.

    Raises:
        MethodError: fewer samples than clusters, or values that are not finite.
    """
    from sklearn.cluster import KMeans  # here: it takes seconds to import, and not every worker clusters
    from sklearn.exceptions import ConvergenceWarning

    check_samples(len(x), clusters, finite=bool(np.isfinite(x).all()))
    model = KMeans(clusters, n_init=starts, random_state=int(rng.integers(2**31)))
    # One thread: several add in another order, and centres then differ in their last bits. Duplicates may leave fewer
    # distinct points than clusters; the metric `clusters_used` tells that, so that no warning is needed.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, sample_weight=weights)
    cluster = model.labels_.astype(np.int64)
    return Clustering(within_clusters(model.cluster_centers_, x, cluster, weights), cluster, float(model.inertia_))


def within_clusters(centres: np.ndarray, x: np.ndarray, cluster: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the centres, and the mean of its samples in place of one that lies outside of its cluster.

    scikit-learn leaves such a centre where it moves several empty clusters to the same samples: duplicates.

    Args:
        centres: (c, d).
        x: (n, d).
        cluster: of each sample, (n,).
        weights: of each sample, (n,); None: all weigh the same.

    >>> within_clusters(np.array([[9.0], [2.0]]), np.array([[0.0], [2.0], [2.0]]), np.array([0, 1, 1]), None)
    array([[0.],
           [2.]])
    """
    centres = centres.copy()
    for k in np.unique(cluster):
        members = cluster == k
        samples = x[members]
        mean = np.average(samples, axis=0, weights=None if weights is None else weights[members])
        radius = np.linalg.norm(samples - mean, axis=1).max()
        longest = np.linalg.norm(samples, axis=1).max()
        if np.linalg.norm(centres[k] - mean) > radius or np.linalg.norm(centres[k]) > longest:
            centres[k] = mean
    return centres


def check_samples(count: int, clusters: int, *, finite: bool) -> None:
    """Refuse samples that K-means cannot cluster.

    Raises:
        MethodError: fewer samples than clusters, or values that are not finite.
    """
    if count < clusters:
        raise MethodError(f"K-means cannot find {clusters} clusters among {count} samples: set model.clusters lower")
    if not finite:
        raise MethodError("K-means was given values that are not finite")


def join_small(x: np.ndarray, clustering: Clustering, min_points: int) -> Clustering:
    """Join the smallest cluster to the nearest one until every cluster has at least `min_points` points.

    Centres stay the means of their points. At least one cluster remains, whatever its size.

    Args:
        x: (n, d), the points.
        clustering: their clustering.
        min_points: number of points.

    >>> x = np.array([[0.0], [1.0], [5.0]])
    >>> join_small(x, Clustering(np.array([[0.5], [5.0]]), np.array([0, 0, 1]), 0.5), 2).centres
    array([[2.]])
    """
    centres, cluster, _ = clustering
    sizes = np.bincount(cluster, minlength=len(centres))
    if sizes.min() >= min_points or len(centres) == 1:
        return clustering
    while len(centres) > 1 and sizes.min() < min_points:
        smallest = sizes.argmin()
        squared = np.square(centres - centres[smallest]).sum(1)
        squared[smallest] = np.inf
        nearest = squared.argmin()
        cluster = np.where(cluster == smallest, nearest, cluster)
        if (cluster == nearest).any():
            centres = centres.copy()
            centres[nearest] = x[cluster == nearest].mean(0)
        sizes[nearest] += sizes[smallest]
        # The numbers of the clusters that remain have no gap.
        centres = np.delete(centres, smallest, 0)
        sizes = np.delete(sizes, smallest)
        cluster = cluster - (cluster > smallest)
    return Clustering(centres, cluster, float(np.square(x - centres[cluster]).sum()))
