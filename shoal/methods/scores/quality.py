"""Quality of a clustering without labels: separation of clusters, sizes.

None of these tells whether the clusters are the wanted ones. The silhouette uses the model's own features: a network
that maps all samples to a few points has a high one, however it groups them. Stability compares two states of one
training: a model that no longer learns is stable. Sizes reveal collapse.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.data.sets.lazy_array import SampleArray

MAX_SAMPLES = 3_000
"""Samples, a seeded draw, for the silhouette, whose cost grows with their square."""


def silhouette(features: SampleArray, cluster: np.ndarray, rng: np.random.Generator) -> float | None:
    """Return the mean silhouette (Rousseeuw 1987): 1 for compact clusters far apart, about 0 for random clusters.

    A sample's silhouette is (b - a) / max(a, b), with a its mean Euclidean distance to the others of its cluster and b
    that to the samples of the nearest other cluster; negative where another cluster is nearer than its own.

    Args:
        features: (n, d).
        cluster: int (n,).
        rng: draws the samples, where there are more than `MAX_SAMPLES`.

    Returns:
        None where it is not defined: fewer than two clusters among the samples drawn, as many clusters as samples, or
        features that are not finite.
    """
    from sklearn.metrics import silhouette_score  # here: it takes seconds to import

    if len(features) > MAX_SAMPLES:
        rows = np.sort(rng.choice(len(features), MAX_SAMPLES, replace=False))
        features = features[rows]
        cluster = cluster[rows]
    features = np.asarray(features)
    if not 2 <= len(np.unique(cluster)) < len(cluster) or not np.isfinite(features).all():
        return None
    with threadpool_limits(1):
        return float(silhouette_score(features.astype(np.float64), cluster))


def size_shares(sizes: np.ndarray) -> dict[str, float]:
    """Return the shares of samples in the smallest and in the largest of c clusters, and the number of empty ones.

    Args:
        sizes: of all clusters, int (c,).

    >>> size_shares(np.array([3, 1, 0]))
    {'smallest_cluster': 0.0, 'largest_cluster': 0.75, 'empty_clusters': 1.0}
    """
    total = max(1, int(sizes.sum()))
    return {
        "smallest_cluster": float(sizes.min() / total),
        "largest_cluster": float(sizes.max() / total),
        "empty_clusters": float((sizes == 0).sum()),
    }
