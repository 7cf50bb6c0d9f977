"""Pairs of clusters that may be one kind of sample at two groups of sites, which an offset sets apart.

Two clusters may live at different sites because those hold different kinds. The other clusters of the sites tell: where
sites differ by an offset, these are moved by the same one, and less it the two lie close.

Symbols in shapes: n samples, d features, c clusters, s sites.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from shoal.methods.clustering.agreement import counts

SHARED = 0.1
"""Most of two clusters that lies at the same sites."""
MAX_VALUES = 50_000_000
"""Values of centres of each cluster at each site up to which pairs are sought."""
MIN_SAMPLES = 10
"""Samples behind a centre, and of shared clusters at each group of sites, from which these tell."""
MOST_LEFT = 0.7
"""Share of two centres' distance that may be left. Of 214 pairs in 17 tables without offsets .73 or more is left."""


def twin_clusters(x: np.ndarray, cluster: np.ndarray, site: np.ndarray, clusters: int) -> tuple[tuple[int, ...], ...]:
    """Return the pairs of clusters that may be one kind.

    Args:
        x: features (n, d) in which clusters lie about centres.
        cluster, site: of each sample, int (n,).
        clusters: c.
    """
    sites = int(site.max(initial=-1)) + 1
    if sites < 2 or clusters * sites * x.shape[1] > MAX_VALUES or not np.isfinite(x).all():
        return ()
    table = counts(cluster, site, clusters, sites)
    shares = table / np.maximum(1, table.sum(1, keepdims=True))
    sums = np.zeros((*table.shape, x.shape[1]))
    np.add.at(sums, (cluster, site), x)
    return tuple(
        (first, second)
        for first, second in combinations(range(clusters), 2)
        if np.minimum(shares[first], shares[second]).sum() <= SHARED
        and distance_left(sums, table, first, second) <= MOST_LEFT
    )


def distance_left(sums: np.ndarray, table: np.ndarray, first: int, second: int) -> float:
    """Return the share of the distance of two clusters' centres that is left without what moves the other clusters.

    That is the mean difference between both groups of sites within the clusters that both hold.

    Args:
        sums: of the features of each cluster at each site (c, s, d).
        table: numbers of samples (c, s).
        first, second: the clusters. Their sites are those that have more of one than of the other.

    Returns:
        Infinity where too few samples tell.
    """
    here = table[first] > table[second]
    there = table[first] < table[second]
    counts_here = table[:, here].sum(1)
    counts_there = table[:, there].sum(1)
    shared = np.minimum(counts_here, counts_there)
    shared[[first, second]] = 0
    if min(counts_here[first], counts_there[second], shared.sum()) < MIN_SAMPLES:
        return np.inf
    means_here = sums[:, here].sum(1) / np.maximum(1, counts_here)[:, None]
    means_there = sums[:, there].sum(1) / np.maximum(1, counts_there)[:, None]
    apart = means_here[first] - means_there[second]
    moved = shared @ (means_here - means_there) / shared.sum()
    return float(np.linalg.norm(apart - moved)) / max(float(np.linalg.norm(apart)), 1e-12)
