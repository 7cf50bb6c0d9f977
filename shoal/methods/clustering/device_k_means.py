"""K-means on the samples' device: Lloyd's iterations of all starts at once on a GPU.

It starts by scikit-learn's greedy k-means++, with the same draws, and stops by the same rules. Only the order of sums
differs, so that a sample between two centres may fall to the other one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from shoal.methods.clustering.k_means import Clustering, check_samples

ITERATIONS = 300
TOLERANCE = 1e-4
"""A start has converged where its centres move by less than this share of the mean variance, as in scikit-learn."""


def device_kmeans(x: Tensor, clusters: int, rng: np.random.Generator, *, starts: int = 10) -> Clustering:
    """Return the best of several runs of K-means on a GPU, without weights; see `k_means.kmeans`.

    Args:
        x: (n, d), floating point.
        clusters: c.
        rng: draws the starts.
        starts: number of runs; the one with the lowest sum of squared distances counts.

    Raises:
        MethodError: fewer samples than clusters, or values that are not finite.
    """
    check_samples(len(x), clusters, finite=bool(torch.isfinite(x).all()))
    x = x.detach().float()
    mean = x.mean(0)
    x = x - mean
    draws = np.random.RandomState(int(rng.integers(2**31)))
    centres, cluster, inertia = _lloyd(x, _starts(x, clusters, starts, draws))
    best = int(inertia.argmin())
    return Clustering(
        (centres[best] + mean).cpu().numpy(), cluster[best].cpu().numpy().astype(np.int64), float(inertia[best])
    )


def _starts(x: Tensor, clusters: int, starts: int, draws: np.random.RandomState) -> Tensor:
    """Draw centres (s, c, d) by greedy k-means++ (Arthur and Vassilvitskii 2007), all starts at once.

    Like scikit-learn: of some candidates, each with a probability in proportion to its squared distance to the nearest
    centre so far, take the one that leaves the lowest sum of distances.
    """
    trials = 2 + int(math.log(clusters))
    first = []
    later = []
    for _ in range(starts):
        first.append(min(int(draws.random_sample() * len(x)), len(x) - 1))
        later.append(draws.random_sample((clusters - 1, trials)))
    chosen = [torch.tensor(first, device=x.device)]
    shares = torch.from_numpy(np.stack(later, 1)).to(x.device)
    closest = _distances(x, chosen[0][:, None]).squeeze(1)
    rows = torch.arange(starts, device=x.device)
    for share in shares:
        total = closest.double().cumsum(1)
        candidates = torch.searchsorted(total, share * total[:, -1:]).clamp(max=len(x) - 1)
        left = torch.minimum(closest[:, None], _distances(x, candidates))
        best = left.double().sum(2).argmin(1)
        closest = left[rows, best]
        chosen.append(candidates[rows, best])
    return x[torch.stack(chosen, 1)]


def _distances(x: Tensor, positions: Tensor) -> Tensor:
    """Return squared distances (s, t, n) of all samples to those at some positions (s, t)."""
    norms = x.square().sum(1)
    products = (x[positions.flatten()] @ x.T).view(*positions.shape, -1)
    return (norms[positions][..., None] + norms - 2 * products).clamp_(min=0)


def _lloyd(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the centres (s, c, d) of all starts until each start has converged.

    Returns:
        The centres, the nearest of each sample int64 (s, n), and the sums of squared distances (s,), float64.
    """
    tolerance = TOLERANCE * x.var(0, correction=0).mean()
    norms = x.square().sum(1)
    at_rest = torch.zeros(len(centres), dtype=torch.bool, device=x.device)
    cluster = _nearest(x, centres)[0]
    for iteration in range(ITERATIONS):
        moved = _means(x, centres, cluster, norms)
        shift = (moved - centres).square().sum((1, 2))
        centres = torch.where(at_rest[:, None, None], centres, moved)
        found = _nearest(x, centres)[0]
        still = (found == cluster).all(1) | (shift <= tolerance)
        cluster = torch.where(at_rest[:, None], cluster, found)
        at_rest |= still
        # Reading whether all have converged waits for the GPU, so that it is done only every fourth time.
        if iteration % 4 == 3 and bool(at_rest.all()):
            break
    pairs = zip(centres, cluster, strict=True)
    inertia = torch.stack([(x - each[own]).square().sum(1).double().sum() for each, own in pairs])
    return centres, cluster, inertia


def _nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each start and sample the nearest centre, int64 (s, n), and the squared distance less the norm."""
    products = (x @ centres.flatten(0, 1).T).view(len(x), *centres.shape[:2]).transpose(0, 1)
    scores = centres.square().sum(2)[:, None] - 2 * products
    lowest, cluster = scores.min(2)
    return cluster, lowest


def _means(x: Tensor, centres: Tensor, cluster: Tensor, norms: Tensor) -> Tensor:
    """Return the means of the clusters (s, c, d); an empty one takes the sample that is farthest from its centre."""
    starts, clusters, _ = centres.shape
    members = torch.nn.functional.one_hot(cluster, clusters).to(x.dtype)
    counts = members.sum(1)
    means = (members.transpose(1, 2) @ x) / counts.clamp(min=1)[..., None]
    farthest = (_nearest(x, centres)[1] + norms).argmax(1)
    return torch.where((counts == 0)[..., None], x[farthest][:, None].expand(starts, clusters, -1), means)
