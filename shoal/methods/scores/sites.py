"""Whether clusters are only sites: how much the site of a sample says about its cluster, against chance.

Symbols in shapes: n samples, c clusters, s sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.methods.clustering.agreement import counts
from shoal.methods.scores.clustering import table_nmi

PERMUTATIONS = 200
LEVEL = 0.05
"""Probability that clusters which have nothing to do with sites are called related to them."""
SITE_SHARE = 0.9
"""From this share of one site on, a cluster is called a site, unless the site holds as large a share of all samples."""
MAX_CELLS = 1_000_000
"""Pairs of a cluster and a site up to which they are counted."""


@dataclass(frozen=True)
class SiteDependence:
    """How much sites say about clusters.

    Attributes:
        nmi: normalised mutual information of cluster and site, 0 to 1.
        by_chance: what `nmi` stays below in 19 of 20 random orders of the clusters.
        sites: (c,), the site that holds most of each cluster.
        site_clusters: clusters that are little but one site, as in no random order.
        closed_sites: sites of which nearly all samples lie in such clusters of their own. A site that is only darker
            than the others is one; a site that alone has a kind of sample, and other kinds beside, is not.
    """

    nmi: float
    by_chance: float
    sites: tuple[int, ...]
    site_clusters: tuple[int, ...]
    closed_sites: tuple[int, ...]


def site_dependence(
    cluster: np.ndarray, site: np.ndarray, clusters: int, sites: int, rng: np.random.Generator
) -> SiteDependence | None:
    """Return how much sites say about clusters, with a permutation test.

    Args:
        cluster: int (n,), 0 to c - 1.
        site: int (n,), 0 to s - 1; some sites may have no sample.
        clusters: c.
        sites: s.
        rng: draws the permutations.

    Returns:
        None where there is nothing to tell: fewer than two sites with samples, or more pairs than `MAX_CELLS`.
    """
    if len(np.unique(site)) < 2 or clusters * sites > MAX_CELLS:
        return None
    table = counts(cluster, site, clusters, sites)
    orders = [counts(rng.permutation(cluster), site, clusters, sites) for _ in range(PERMUTATIONS)]
    null = np.array([table_nmi(order) for order in orders])
    sizes = np.maximum(1, table.sum(1))
    shares = table.max(1) / sizes
    null_shares = np.array([order.max(1) / sizes for order in orders])
    largest = table.argmax(1)
    whole = table.sum(0) / table.sum()
    # A site that holds nearly everything holds nearly all of every cluster: that says nothing.
    beyond = shares - whole[largest]
    site_clusters = np.flatnonzero((shares >= SITE_SHARE) & (beyond >= 1 - SITE_SHARE) & (shares > null_shares.max(0)))
    return SiteDependence(
        nmi=table_nmi(table),
        by_chance=float(np.quantile(null, 1 - LEVEL)),
        sites=tuple(largest.tolist()),
        site_clusters=tuple(site_clusters.tolist()),
        closed_sites=_closed_sites(table, site_clusters, largest),
    )


def _closed_sites(table: np.ndarray, site_clusters: np.ndarray, largest: np.ndarray) -> tuple[int, ...]:
    """Return the sites of which nearly all samples lie in clusters of their own.

    Args:
        table: counts (c, s).
        site_clusters: clusters that are little but one site.
        largest: (c,), the site that holds most of each cluster.
    """
    inside = np.zeros(table.shape[1])
    for cluster in site_clusters:
        inside[largest[cluster]] += table[cluster, largest[cluster]]
    present = table.sum(0) > 0
    return tuple(np.flatnonzero(present & (inside >= SITE_SHARE * table.sum(0))).tolist())
