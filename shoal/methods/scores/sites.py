"""Whether clusters are only sites: how much the site of a sample says about its cluster, against chance.

Symbols in shapes: n samples, c clusters, s sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PERMUTATIONS = 200
LEVEL = 0.05
"""Probability that clusters which have nothing to do with sites are called related to them."""
MOSTLY = 0.9
"""From this share of one site on, a cluster is called a site, unless the site holds as large a share of all samples."""


@dataclass(frozen=True)
class SiteDependence:
    """How much sites say about clusters.

    Attributes:
        nmi: normalised mutual information of cluster and site, 0 to 1.
        by_chance: what `nmi` stays below in 19 of 20 random orders of the clusters.
        p_value: share of random orders with an `nmi` as high, the one observed counted as well.
        shares: (c,), the largest share of a cluster that one site holds; 0 for an empty cluster.
        sites: (c,), that site.
        site_clusters: clusters that are little but one site.
    """

    nmi: float
    by_chance: float
    p_value: float
    shares: tuple[float, ...]
    sites: tuple[int, ...]
    site_clusters: tuple[int, ...]


def site_dependence(cluster: np.ndarray, site: np.ndarray, clusters: int, rng: np.random.Generator) -> SiteDependence:
    """Return how much sites say about clusters, with a permutation test.

    Args:
        cluster: int (n,), 0 to c - 1.
        site: int (n,), 0 to s - 1.
        clusters: c.
        rng: draws the permutations.
    """
    sites = int(site.max()) + 1 if len(site) else 0
    table = _table(cluster, site, clusters, sites)
    nmi = _information(table)
    null = np.array(
        [_information(_table(rng.permutation(cluster), site, clusters, sites)) for _ in range(PERMUTATIONS)]
    )
    sizes = table.sum(1)
    shares = table.max(1, initial=0) / np.maximum(1, sizes)
    whole = table.sum(0) / max(1, table.sum())
    largest = table.argmax(1) if sites else np.zeros(clusters, dtype=int)
    # A site that holds nearly everything holds nearly all of every cluster: that says nothing.
    beyond = shares - whole[largest] if sites else shares
    suspicious = [k for k in range(clusters) if shares[k] >= MOSTLY and beyond[k] >= 1 - MOSTLY]
    return SiteDependence(
        nmi=nmi,
        by_chance=float(np.quantile(null, 1 - LEVEL)),
        p_value=float((1 + (null >= nmi).sum()) / (1 + PERMUTATIONS)),
        shares=tuple(float(share) for share in shares),
        sites=tuple(int(k) for k in largest),
        site_clusters=tuple(suspicious),
    )


def _table(cluster: np.ndarray, site: np.ndarray, clusters: int, sites: int) -> np.ndarray:
    """Return the counts (c, s) of samples by cluster and site."""
    counts = np.bincount(cluster * sites + site, minlength=clusters * sites)
    return counts.reshape(clusters, sites)


def _information(table: np.ndarray) -> float:
    """Return the mutual information of rows and columns over the arithmetic mean of their entropies."""
    joint = table / max(1, table.sum())
    rows, columns = joint.sum(1), joint.sum(0)
    mean_entropy = (_entropy(rows) + _entropy(columns)) / 2
    if mean_entropy == 0:
        return 0.0
    return float((_entropy(rows) + _entropy(columns) - _entropy(joint.ravel())) / mean_entropy)


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
