"""Pairs of clusters that may be one kind of sample at two groups of sites, which an offset sets apart.

Two clusters may live at different sites because those hold different kinds. The other clusters of the sites tell: where
sites differ by an offset, these are moved by the same one, and less it the two lie close.

Symbols in shapes: n samples, d features, c clusters, s sites.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from shoal.methods.scores.clustering import counts

SHARED = 0.1
"""Most of two clusters that lies at the same sites."""
MAX_VALUES = 50_000_000
"""Values of centres of each cluster at each site up to which pairs are sought."""
MIN_SAMPLES = 10
"""Samples of a cluster, at sites with other clusters, from which its centre is known."""
MIN_OTHERS = 5
"""Samples of other clusters that tell the offset of a site."""
MOST_LEFT = (0.65, 0.5)
"""Share of two centres' distance that may be left: by residuals of other clusters, and by their means. On 17 tables
without offsets .73 and .59 are left at least, and on cells under two stains .64 and .61 between halves of a kind."""


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
    sums = np.zeros((*table.shape, x.shape[1]))
    np.add.at(sums, (cluster, site), x)
    sizes = np.maximum(1, table.sum(1, keepdims=True))
    centres = sums.sum(1) / sizes
    residuals = sums - table[..., None] * centres[:, None]
    twins = []
    for pair in combinations(range(clusters), 2):
        first, second = pair
        if np.minimum(table[first] / sizes[first], table[second] / sizes[second]).sum() <= SHARED:
            most = np.linalg.norm(centres[first] - centres[second]) * np.array(MOST_LEFT)
            left = [distance_left(sums, values, table, pair) for values in (residuals, sums)]
            if (left <= most).any():
                twins.append(pair)
    return tuple(twins)


def distance_left(sums: np.ndarray, values: np.ndarray, table: np.ndarray, pair: tuple[int, int]) -> float:
    """Return the distance of two clusters' centres less the offsets of sites; infinity where too few samples tell.

    Args:
        sums: of the features of each cluster at each site (c, s, d).
        values: sums (c, s, d) whose mean over a site's other clusters is its offset.
        table: numbers of samples (c, s).
        pair: the clusters.
    """
    others = np.delete(table, pair, 0).sum(0)
    told = others >= MIN_OTHERS
    both = table[pair, :][:, told]
    if both.sum(1).min() < MIN_SAMPLES:
        return np.inf
    offsets = np.delete(values, pair, 0).sum(0)[told] / others[told, None]
    moved = (sums[pair, :][:, told] - both[..., None] * offsets).sum(1) / both.sum(1)[:, None]
    return float(np.linalg.norm(moved[0] - moved[1]))
