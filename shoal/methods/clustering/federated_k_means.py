"""Federated K-means: Lloyd's iterations in which clients send only sums and counts.

One iteration over all clients equals one iteration of K-means (Lloyd 1982) on their pooled samples. The starts come
from the clients' own clusterings, as in k-FED (Dennis et al. 2021), by k-means++ (Arthur and Vassilvitskii 2007)
weighted by the number of samples of each local centre.

Symbols in shapes: n samples, d features, c clusters, s starts side by side, m local centres of all clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.methods.clustering.k_means import Clustering, kmeans
from shoal.methods.contract.context import MethodError

MIN_VARIANCE = 1e-9
"""Directions with less than this share of the largest variance count as constant."""
ROUNDING = 1e-12
"""Share of the mean square below which a variance is rounding."""
ROWS = 2048
"""Samples in one pass when distances are taken."""
SERVER_STARTS = 30
"""K-means of local centres, of which the cheapest starts are taken."""
SAME_COST = 1e-9
"""Share of their cost by which two starts differ at least."""


class Moments(NamedTuple):
    """Moments of some samples, float64: their number, their sum (d,), the sum of their outer products (d, d)."""

    samples: Tensor
    total: Tensor
    outer: Tensor


def summed(answers: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of each tensor over the answers of clients, of which one at a time is in memory.

    Raises:
        MethodError: there is no answer.
    """
    total: dict[str, Tensor] = {}
    for tensors in answers:
        for name, tensor in tensors.items():
            if name in total:
                total[name] += tensor
            else:
                total[name] = tensor.clone()
    if not total:
        raise MethodError("no client has answered: there is nothing to add up")
    return total


def moments(x: Tensor) -> Moments:
    """Return the moments of samples x (n, d); those of several clients add up."""
    x = x.double()
    return Moments(torch.tensor(float(len(x)), dtype=torch.float64), x.sum(0), x.mT @ x)


def whitening(total: Moments, components: int, power: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and the projection (d, k) onto the first k principal components, with variances evened out.

    A component of variance v has variance v^(1 - power) after it: 1 with a power of 1, and v with a power of 0.

    Args:
        total: moments of all samples.
        components: k, at most d; directions of constant features are left out.
        power: between 0 and 1, how far variances are made equal.

    Raises:
        MethodError: no sample, or features that are the same for all.
    """
    if not total.samples > 0:
        raise MethodError(
            "no client has as many samples as method.min_points, so that none may send the moments of its features: "
            "set method.min_points lower"
        )
    mean = total.total / total.samples
    covariance = total.outer / total.samples - torch.outer(mean, mean)
    variances, directions = torch.linalg.eigh(covariance)
    variances = variances.flip(0)[:components]
    directions = directions.flip(1)[:, :components]
    # A variance of 0 comes out as rounding of the squares that were subtracted.
    if not variances[0] > ROUNDING * total.outer.trace() / total.samples:
        raise MethodError(
            "the features are the same for all samples: the encoder has collapsed, and there is nothing to cluster"
        )
    varying = variances > MIN_VARIANCE * variances[0]
    return mean, directions[:, varying] / variances[varying] ** (power / 2)


class Sums(NamedTuple):
    """The sums of one iteration over some samples, float64.

    Attributes:
        sums: (s, c, d), the sum of the samples nearest to each centre.
        counts: (s, c), the number of these samples.
        inertia: (s,), the sum of squared distances to the nearest centre, of all samples.
    """

    sums: Tensor
    counts: Tensor
    inertia: Tensor


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each sample, the first of equally near ones, and its squared distance, both (s, n).

    Args:
        x: (n, d), float64.
        centres: (s, c, d), float64.
    """
    # In place: this is the largest tensor by far.
    squared = (2 * x @ centres.mT).neg_()
    squared += x.square().sum(1)[None, :, None]
    squared += centres.square().sum(2)[:, None, :]
    lowest = squared.clamp_min_(0).min(2)
    return lowest.indices, lowest.values


def row_blocks(x: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    """Return samples x (n, d) as float64 blocks of at most `ROWS`; blocks stay as they are."""
    return x.double().split(ROWS) if isinstance(x, Tensor) else x


def cluster_sums(x: Tensor | Iterable[Tensor], centres: Tensor, *, min_points: int = 1) -> Sums:
    """Return one client's part of an iteration.

    Args:
        x: (n, d), or blocks of it, float64, on the device of the centres.
        centres: (s, c, d).
        min_points: a cluster of fewer samples is left out of sums and counts: its mean would reveal single samples.
    """
    centres = centres.double()
    if isinstance(x, Tensor):
        centres = centres.to(x.device)
    starts, clusters, width = centres.shape
    sums = centres.new_zeros(starts, clusters, width)
    counts = centres.new_zeros(starts, clusters)
    inertia = centres.new_zeros(starts)
    for part in row_blocks(x):
        cluster, squared = nearest(part, centres)
        member = part.new_zeros(*cluster.shape, clusters).scatter_(2, cluster[..., None], 1)  # (s, n, c)
        sums += member.mT @ part
        counts += member.sum(1)
        inertia += squared.sum(1)
    few = counts < min_points
    return Sums(sums.masked_fill(few[..., None], 0), counts.masked_fill(few, 0), inertia)


def moved_centres(centres: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of each cluster's samples (s, c, d), float64; the centre of a cluster without weight stays."""
    weight = counts[..., None]
    return torch.where(weight > 0, sums / weight.where(weight > 0, 1), centres.double())


def starting_centres(local: Tensor, weights: Tensor, clusters: int, starts: int, rng: np.random.Generator) -> Tensor:
    """Return initial centres (s, c, d), float64: K-means of the clients' local centres, once for each start.

    Args:
        local: (m, d), centres that clients found among their own samples.
        weights: (m,), number of samples of each.
        clusters: c.
        starts: s.
        rng: draws the k-means++ starts.

    Raises:
        MethodError: fewer local centres than clusters.
    """
    drawn = local_clusterings(local, weights, clusters, starts, rng)
    return torch.stack([torch.from_numpy(one.centres) for one in drawn])


def cheapest_starts(local: Tensor, weights: Tensor, clusters: int, count: int, rng: np.random.Generator) -> Tensor:
    """Return the cheapest of many different initial centres, float64 (s, c, d), s at most `count`.

    They cost what the local centres do. Arguments and errors are those of `starting_centres`.
    """
    drawn = local_clusterings(local, weights, clusters, SERVER_STARTS, rng)
    by_cost: list[Clustering] = []
    for one in sorted(drawn, key=lambda clustering: clustering.inertia):
        if not by_cost or one.inertia > by_cost[-1].inertia * (1 + SAME_COST):
            by_cost.append(one)
    return torch.stack([torch.from_numpy(one.centres) for one in by_cost[:count]])


def local_clusterings(
    local: Tensor, weights: Tensor, clusters: int, starts: int, rng: np.random.Generator
) -> list[Clustering]:
    """Return K-means of the clients' local centres, once for each start; see `starting_centres`."""
    if len(local) < clusters:
        raise MethodError(
            f"the clients sent {len(local)} local centres, too few to start {clusters} clusters from: set "
            "model.clusters lower, or let more clients take part"
        )
    x = local.double().cpu().numpy()
    weight = weights.double().cpu().numpy()
    return [kmeans(x, clusters, rng, starts=1, weights=weight) for _ in range(starts)]
