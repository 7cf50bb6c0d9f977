"""Offsets of sites: x = centre of its cluster + offset of its site + rest (as ComBat and Harmony have it).

A site finds its offset beside the clusters: the mean of its residuals, in turns with the nearest centres. It sends sums
of x - offset and keeps the offset. K-means has several beginnings, from sites that keep, halve or lose the distance of
their mean from the federation's, and after some iterations their costs decide.

A site of one kind of samples could explain it by an offset as well as by a centre. So a cost with offsets counts each
cluster's samples less the offset that the *other* clusters of the site tell.

Symbols in shapes: n samples of a site, k dimensions, c clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.federated_k_means import cluster_sums, moved_centres, nearest
from shoal.methods.clustering.k_means import kmeans

SHARES = (0.0, 0.5, 1.0)
"""Beginnings: the share of the distance of a site's mean from the federation's that its first offset has."""
SAMPLES_PER_CLUSTER = 4
"""A site of fewer samples a cluster has no offset."""
TURNS = 5
"""So often a site finds nearest centres and its offset in turns, in each iteration of K-means."""
MOST_COST = 0.7
"""Offsets are used where they cost at most this share of what samples cost without. Chosen on tuning tables: where
sites are alike they cost .73 of it or more, whatever kinds each site holds; with offsets of .8 deviations .26 to .65,
where sites hold all kinds. (BIC also takes offsets where sites hold one kind each, and ACC falls by .16.)"""
STARTS = 3
ITERATIONS = 5
"""Where vectors are in one place: of K-means the best of so many starts, and then with offsets so many iterations."""
TINY = 1e-300
"""Is added to costs, so that two of 0 are the same."""
STILL_WITH_OFFSETS = 0.05
"""K-means is then done when clusters keep their sizes and no centre moves by more than this share of the
centres' spread: all of them may go on to drift together, which changes no cluster."""


class SiteFit(NamedTuple):
    """A site's offset (k,), and what its samples cost with it, a scalar."""

    offset: Tensor
    cost: Tensor


def site_fit(z: Tensor, centres: Tensor, share: float, mean: Tensor, samples: float = 0) -> SiteFit:
    """Return the offset of a site; 0 where it has few samples, or where its clusters do not agree on one.

    Args:
        z: its vectors, float64 (n, k).
        centres: (c, k).
        share: of its mean's distance from the federation's with which it begins; 0: it has no offset.
        mean: of the federation's vectors, (k,).
        samples: for which the vectors stand, if these are more.
    """
    plain = SiteFit(z.new_zeros(z.shape[1]), nearest(z, centres[None])[1].sum())
    if share == 0 or not enough_samples(max(samples, len(z)), len(centres)):
        return plain
    offset = share * (z.mean(0) - mean)
    for _ in range(TURNS):
        offset = (z - centres[nearest(z - offset, centres[None])[0][0]]).mean(0)
    (cluster,), squared = nearest(z - offset, centres[None])
    cost = torch.maximum(squared.sum(), cost_by_others(z - centres[cluster], cluster, len(centres)))
    return SiteFit(offset, cost) if bool(cost < plain.cost) else plain


def cost_by_others(residuals: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Return the sum of squares of residuals (n, k), less the offset that a sample's other clusters tell.

    >>> alone = cost_by_others(torch.tensor([[2.0], [2.0]]), torch.tensor([0, 0]), 2)
    >>> alone, cost_by_others(torch.tensor([[2.0], [2.0]]), torch.tensor([0, 1]), 2)
    (tensor(8.), tensor(2.))
    """
    member = F.one_hot(cluster, clusters).to(residuals)
    others = residuals.sum(0) - member.mT @ residuals
    # One sample more, at 0: a few others tell little.
    counts = 1 + len(residuals) - member.sum(0)
    return (residuals - (others / counts[:, None])[cluster]).square().sum()


def enough_samples(count: float, clusters: int) -> bool:
    """Return whether so many samples of a site can tell its offset."""
    return count >= SAMPLES_PER_CLUSTER * clusters


def beginnings(sent: Sequence[tuple[Tensor, Tensor]], clusters: int) -> tuple[Tensor, list[tuple[float, Tensor]]]:
    """Return the federation's mean (k,), and for each beginning its share and all local centres (l, k).

    There is one beginning, without offsets, where most samples are at sites that are too small to tell.

    Args:
        sent: by client, the centres that it found among its samples, (l, k), and how many are behind each, (l,).
        clusters: that are sought.
    """
    samples = torch.stack([counts.sum() for _, counts in sent])
    means = torch.stack([counts @ centres / counts.sum().clamp_min(1) for centres, counts in sent])
    mean = samples @ means / samples.sum()
    large = samples >= SAMPLES_PER_CLUSTER * clusters
    several = int(large.sum()) > 1 and bool(samples[large].sum() > samples.sum() / 2)
    offsets = (means - mean) * large[:, None]
    return mean, [
        (share, torch.cat([centres - share * offset for (centres, _), offset in zip(sent, offsets, strict=True)]))
        for share in (SHARES if several else SHARES[:1])
    ]


def best_beginning(costs: Tensor) -> int:
    """Return the beginning that goes on, by what each costs (s,): the first is that without offsets.

    >>> best_beginning(torch.tensor([10.0, 6.0, 5.0])), best_beginning(torch.tensor([10.0, 9.0, 8.0]))
    (2, 0)
    """
    cheapest = int(costs.argmin())
    return cheapest if float(costs[cheapest]) <= MOST_COST * float(costs[0]) else 0


class RaceEnd(NamedTuple):
    """The cheapest beginning: its share of the cost without offsets, the federation's mean (k,), the offsets (m, k).

    The share is 1 where local centres are too few, or sites too small to tell offsets.
    """

    share: float
    mean: Tensor
    offsets: Tensor


def race(
    vectors: Sequence[Tensor], sent: Sequence[tuple[Tensor, Tensor]], clusters: int, rng: np.random.Generator
) -> RaceEnd:
    """Return how K-means ends from each beginning, among vectors that are in one place.

    Args:
        vectors: of each of m sites, float64 (n, k): its samples, or its local centres.
        sent: as of `beginnings`, local centres of each site, (l, k), and how many samples are behind them, (l,).
        clusters: c.
        rng: draws the starts.
    """
    mean, begun = beginnings(sent, clusters)
    if len(begun) == 1 or len(begun[0][1]) < clusters:
        return RaceEnd(1.0, mean, torch.zeros(len(vectors), len(mean)))
    ends = []
    for share, moved in begun:
        centres = torch.from_numpy(kmeans(moved.cpu().numpy(), clusters, rng, starts=STARTS).centres).double()
        for _ in range(ITERATIONS):
            fits = [
                site_fit(z, centres, share, mean, float(counts.sum()))
                for z, (_, counts) in zip(vectors, sent, strict=True)
            ]
            less = torch.cat([z - fit.offset for z, fit in zip(vectors, fits, strict=True)])
            sums = cluster_sums(less, centres[None])
            centres = moved_centres(centres[None], sums.sums, sums.counts)[0]
        ends.append((TINY + float(sum(fit.cost for fit in fits)), torch.stack([fit.offset for fit in fits])))
    cost, offsets = min(ends, key=lambda end: end[0])
    return RaceEnd(cost / ends[0][0], mean, offsets)
