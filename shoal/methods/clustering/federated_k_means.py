"""Federated K-means: Lloyd's iterations of which only sums and counts leave a client.

One iteration over all clients is one iteration of K-means (Lloyd 1982) on their pooled samples, whatever the clients
hold. The starts come from the clients' own clusterings, as in k-FED (Dennis et al. 2021), by k-means++ (Arthur and
Vassilvitskii 2007) weighted by how many samples stand behind each local centre.

Symbols in shapes: n samples, d features, c clusters, s starts that go on side by side, m local centres of all clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.context import MethodError

NOTHING = 1e-9
"""Directions with less than this share of the largest variance count as constant."""
ROUNDING = 1e-12
"""Share of the mean square below which a variance is rounding."""
ROWS = 2048
"""Samples in one pass when distances are taken."""


class Moments(NamedTuple):
    """What whitening takes from some samples, float64: how many, their sum (d,), the sum of outer products (d, d)."""

    samples: Tensor
    total: Tensor
    outer: Tensor


def moments(x: Tensor) -> Moments:
    """The moments of samples x (n, d): those of several clients add up."""
    x = x.double()
    return Moments(torch.tensor(float(len(x)), dtype=torch.float64), x.sum(0), x.mT @ x)


def whitening(of: Moments, components: int, power: float = 1.0) -> tuple[Tensor, Tensor]:
    """The mean (d,) and the projection (d, k) onto the first k principal components, their variances made more equal.

    A component of variance v has variance v^(1 - power) after it: 1 with a power of 1, and what it had with 0.

    Args:
        of: moments of all samples.
        components: k, at most d; directions in which nothing varies are left out.
        power: between 0 and 1, how far variances are made equal.

    Raises:
        MethodError: no sample, or features that are the same for all.
    """
    if not of.samples > 0:
        raise MethodError(
            "no client has as many samples as method.min_points, so that nobody may say how its features vary: set "
            "method.min_points lower"
        )
    mean = of.total / of.samples
    covariance = of.outer / of.samples - torch.outer(mean, mean)
    variances, directions = torch.linalg.eigh(covariance)
    variances, directions = variances.flip(0)[:components], directions.flip(1)[:, :components]
    # What rounding leaves of a variance of 0 goes with the squares that were subtracted.
    if not variances[0] > ROUNDING * of.outer.trace() / of.samples:
        raise MethodError(
            "the features are the same for all samples: the encoder has collapsed, and there is nothing to cluster"
        )
    there = variances > NOTHING * variances[0]
    return mean, directions[:, there] / variances[there] ** (power / 2)


class Sums(NamedTuple):
    """What one iteration takes from some samples, float64.

    Attributes:
        sums: (s, c, d), the sum of the samples nearest to each centre.
        counts: (s, c), how many they are.
        inertia: (s,), the sum of squared distances to the nearest centre, of all samples.
    """

    sums: Tensor
    counts: Tensor
    inertia: Tensor


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each sample and the squared distance to it, both (s, n); of equally near ones the first.

    Args:
        x: (n, d), float64.
        centres: (s, c, d), float64.
    """
    squared = (x.square().sum(1)[None, :, None] - 2 * x @ centres.mT + centres.square().sum(2)[:, None, :]).clamp_min(0)
    least = squared.min(2)
    return least.indices, least.values


def cluster_sums(x: Tensor, centres: Tensor, *, least: int = 1) -> Sums:
    """One client's part of an iteration.

    Args:
        x: (n, d).
        centres: (s, c, d).
        least: a cluster of fewer samples is left out of sums and counts, as its mean would tell of single ones.
    """
    x, centres = x.double(), centres.double().to(x.device)
    starts, clusters, width = centres.shape
    sums, counts = centres.new_zeros(starts, clusters, width), centres.new_zeros(starts, clusters)
    inertia = centres.new_zeros(starts)
    for part in x.split(ROWS):
        cluster, squared = nearest(part, centres)
        member = torch.nn.functional.one_hot(cluster, clusters).double()  # (s, n, c)
        sums += member.mT @ part
        counts += member.sum(1)
        inertia += squared.sum(1)
    few = counts < least
    return Sums(sums.masked_fill(few[..., None], 0), counts.masked_fill(few, 0), inertia)


def moved_centres(centres: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """The mean of each cluster's samples (s, c, d), float64; a cluster of no weight stays where it is."""
    weight = counts[..., None]
    return torch.where(weight > 0, sums / weight.where(weight > 0, 1), centres.double())


def starting_centres(local: Tensor, weights: Tensor, clusters: int, starts: int, rng: np.random.Generator) -> Tensor:
    """Centres to start from: K-means of the clients' local centres, once for each start, (s, c, d) float64.

    Args:
        local: (m, d), centres that clients found among their own samples.
        weights: (m,), how many samples stand behind each.
        clusters: c.
        starts: s.
        rng: draws the k-means++ starts.

    Raises:
        MethodError: fewer local centres than clusters.
    """
    if len(local) < clusters:
        raise MethodError(
            f"the clients sent {len(local)} local centres, too few to start {clusters} clusters from: set "
            "model.clusters lower, or let more clients take part"
        )
    x, weight = local.double().cpu().numpy(), weights.double().cpu().numpy()
    found = [kmeans(x, clusters, rng, starts=1, weights=weight).centres for _ in range(starts)]
    return torch.stack([torch.from_numpy(centres) for centres in found])
