"""How good a clustering is, judged without labels: separation of clusters, stability, sizes.

None of these says that clusters are the ones wanted. Silhouette is of the model's own features: a network that maps all
samples to a few points has a high one, whatever it groups them by. Stability compares two states of one training: a
model that no longer learns is stable. Sizes are a check on collapse.
"""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from shoal.methods.scores.clustering import ari

DRAWN = 3_000
"""At most so many samples, a seeded draw, go into the silhouette, whose cost grows with their square."""


def silhouette(features: np.ndarray, cluster: np.ndarray, rng: np.random.Generator) -> float | None:
    """Mean silhouette (Rousseeuw 1987): 1 for compact clusters far apart, about 0 for a random assignment.

    Of each sample it is (b - a) / max(a, b), with a its mean Euclidean distance to the others of its cluster and b that
    to the samples of the nearest other cluster; negative where another cluster is nearer than its own.

    Args:
        features: (n, d).
        cluster: int (n,).
        rng: draws the samples, where there are more than `DRAWN`.

    Returns:
        None where it is not defined: fewer than two clusters among the samples drawn, as many clusters as samples, or
        features that are not finite.
    """
    from sklearn.metrics import silhouette_score  # here: it takes seconds to import

    if len(features) > DRAWN:
        drawn = np.sort(rng.choice(len(features), DRAWN, replace=False))
        features, cluster = features[drawn], cluster[drawn]
    if not 2 <= len(np.unique(cluster)) < len(cluster) or not np.isfinite(features).all():
        return None
    with threadpool_limits(1):
        return float(silhouette_score(features.astype(np.float64), cluster))


def stability(before: np.ndarray, after: np.ndarray) -> float | None:
    """Adjusted Rand index of two assignments of the same samples, int (n,): 1 where they group alike, 0 by chance.

    Which number a cluster has does not matter, so that clusters that K-means found anew can be compared. None where
    both have all samples in one cluster: that they agree would say nothing.
    """
    if len(np.unique(before)) == len(np.unique(after)) == 1:
        return None
    return ari(before, after)


def size_shares(cluster: np.ndarray, clusters: int) -> dict[str, float]:
    """Shares of all samples in the smallest and in the largest of c clusters, and how many are empty.

    >>> size_shares(np.array([0, 0, 0, 1]), 3)
    {'smallest_cluster': 0.0, 'largest_cluster': 0.75, 'empty_clusters': 1.0}
    """
    sizes = np.bincount(cluster, minlength=clusters)
    total = max(1, int(sizes.sum()))
    return {
        "smallest_cluster": float(sizes.min() / total),
        "largest_cluster": float(sizes.max() / total),
        "empty_clusters": float((sizes == 0).sum()),
    }
