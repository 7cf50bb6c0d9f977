"""K-means on the samples' device: Lloyd's iterations of all starts at once on a GPU.

It starts by scikit-learn's greedy k-means++, with the same draws, and goes on until all starts stand still. An empty
cluster keeps its centre.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from shoal.methods.clustering.federated_k_means import cluster_sums, moved_centres, nearest, row_blocks
from shoal.methods.clustering.k_means import Clustering, check_samples

ITERATIONS = 300
TOLERANCE = 1e-4
"""Starts have converged where no start's centres move by more than this share of the mean variance."""


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
    centres = _starts(x, clusters, starts, draws).double()
    tolerance = TOLERANCE * x.var(0, correction=0).mean()
    for _ in range(ITERATIONS):
        sums = cluster_sums(x, centres)
        before = centres
        centres = moved_centres(before, sums.sums, sums.counts)
        if bool((centres - before).square().sum((1, 2)).max() <= tolerance):
            break
    inertia = cluster_sums(x, centres).inertia
    best = int(inertia.argmin())
    cluster = torch.cat([nearest(part, centres[best : best + 1])[0][0] for part in row_blocks(x)])
    return Clustering((centres[best] + mean).float().cpu().numpy(), cluster.cpu().numpy(), float(inertia[best]))


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
