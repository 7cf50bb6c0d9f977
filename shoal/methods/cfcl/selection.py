"""Which samples a device gives to a neighbour: reserves by K-means++, pulls by macro and micro importance (CF-CL).

Shapes: n candidates, r reserve samples, e embedding dimensions. Equations by the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.data.views.view import Samples

Embed = Callable[[Samples, torch.Generator | None], Tensor]
"""A function to unit embeddings (n, e) of samples, or of their augmentations where it is given a generator."""
MARGIN = 1.0
"""Margin of the triplet loss, in training and in selection."""

ITERATIONS = 10
"""Most iterations of a device's K-means."""


class Embeddings(NamedTuple):
    """For one receiver: embeddings of the candidates (n, e), of its reserve and of augmentations of that (r, e).

    Reserves are embedded as they are (anchors) and augmented (positives): a candidate is judged as their negative.
    """

    candidates: Tensor
    anchors: Tensor
    positives: Tensor


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Return max(0, |a - p|^2 - |a - n|^2 + `MARGIN`), mean over rows (eq. 1); embeddings (n, e)."""
    to_positive = (anchor - positive).pow(2).sum(1)
    to_negative = (anchor - negative).pow(2).sum(1)
    return (to_positive - to_negative + MARGIN).clamp(min=0).mean()


def plus_plus(x: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """Draw rows as K-means++ draws its first centres: positions int64 (min(clusters, n),)."""
    count = min(clusters, len(x))
    chosen = [int(rng.integers(len(x)))]
    distance = (x - x[chosen[0]]).pow(2).sum(1).double()
    while len(chosen) < count:
        distance[chosen] = 0
        total = float(distance.sum())
        if total > 0:
            # Cumulative sums in numpy: the same draw whatever torch's threads do.
            edges = np.cumsum(distance.cpu().numpy())
            pick = int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))
        else:  # only duplicates are left
            pick = int(rng.choice(np.setdiff1d(np.arange(len(x)), chosen)))
        pick = min(pick, len(x) - 1)
        chosen.append(pick)
        distance = torch.minimum(distance, (x - x[pick]).pow(2).sum(1).double())
    return torch.tensor(chosen)


def one_start_kmeans(x: Tensor, clusters: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the cluster of each row (n,) and the centres (k, e), by K-means from one K-means++ start.

    Not `shoal.methods.clustering.k_means.kmeans`, the best of ten starts run to convergence: every device clusters for
    every neighbour at every pull, so one start and a few iterations on a few hundred rows must do.
    """
    centres = x[plus_plus(x, clusters, rng)].clone()
    cluster = torch.cdist(x, centres).argmin(1)
    for _ in range(ITERATIONS):
        for k in range(len(centres)):
            if bool((cluster == k).any()):
                centres[k] = x[cluster == k].mean(0)
        after = torch.cdist(x, centres).argmin(1)
        if torch.equal(after, cluster):
            break
        cluster = after
    return cluster, centres


def reserve(x: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """Return positions of a reserve (eq. 6): the sample nearest each K-means++ centroid.

    Args:
        x: embeddings of a device's samples (n, e).
        size: number of samples in the reserve; all where there are fewer.
        rng: draws.

    Returns:
        int64, at most `size`, without repetition, ascending.
    """
    if size >= len(x):
        return torch.arange(len(x))
    _, centres = one_start_kmeans(x, size, rng)
    chosen: list[int] = []
    distance = torch.cdist(centres, x)
    for row in distance:
        order = row.argsort()
        # Two centroids may share their nearest sample: the next one is as real.
        chosen.append(next(int(i) for i in order if int(i) not in chosen))
    return torch.tensor(sorted(chosen))


def macro_probability(cluster_tx: Tensor, cluster_res: Tensor, clusters: int) -> Tensor:
    """Return the probability of each cluster (eq. 8, 9), float64 (clusters,): high where the receiver has little.

    It is f / (f + g), where f = n_tx / n and g = n_res / r are the cluster's fractions of candidates and of the
    reserve, so that it does not matter that there are many more candidates.

    Args:
        cluster_tx: cluster of each candidate of the sender (n,).
        cluster_res: cluster of each sample of the receiver's reserve (r,).
        clusters: number of clusters.
    """
    tx = torch.bincount(cluster_tx, minlength=clusters).double()
    res = torch.bincount(cluster_res, minlength=clusters).double()
    f = tx / len(cluster_tx)
    g = res / max(1, len(cluster_res))
    weight = torch.where(tx > 0, f / (f + g), 0.0)  # a cluster may hold neither
    return weight / weight.sum()


def micro_probability(losses: Tensor, cluster: Tensor, clusters: int, heat: float) -> Tensor:
    """Return each candidate's probability within its cluster (eq. 11), float64 (n,): as exp(heat loss)."""
    weight = torch.zeros(len(losses), dtype=torch.float64)
    for k in range(clusters):
        inside = cluster == k
        if bool(inside.any()):
            weight[inside] = torch.softmax(heat * losses[inside].double(), 0)
    return weight


def negative_losses(candidates: Tensor, anchors: Tensor, positives: Tensor) -> Tensor:
    """Return the mean triplet loss of each candidate as the negative of all anchors (eq. 10), (n,).

    Args:
        candidates: embeddings (n, e).
        anchors, positives: embeddings of the receiver's reserve and of its augmentations (r, e).
    """
    to_positive = (anchors - positives).pow(2).sum(1)
    to_candidate = torch.cdist(anchors, candidates).pow(2)
    return (to_positive[:, None] - to_candidate + MARGIN).clamp(min=0).mean(0)


def importance(
    candidates: Tensor,
    anchors: Tensor,
    positives: Tensor,
    *,
    clusters: int,
    heat: float,
    macro: Callable[[Tensor, Tensor, int], Tensor],
    rng: np.random.Generator,
) -> Tensor:
    """Return the probability of each candidate (eq. 12), macro of its cluster times micro within it, float64 (n,).

    They sum to 1. Without a reserve nothing is known of the receiver, and all candidates are equally likely.
    """
    if not len(anchors):
        return torch.full((len(candidates),), 1 / len(candidates), dtype=torch.float64)
    cluster, _ = one_start_kmeans(torch.cat((candidates, anchors)), clusters, rng)
    cluster_tx, cluster_res = cluster.split([len(candidates), len(anchors)])
    losses = negative_losses(candidates, anchors, positives)
    joint = macro(cluster_tx, cluster_res, clusters)[cluster_tx] * micro_probability(losses, cluster_tx, clusters, heat)
    return joint / joint.sum()


def draw_uniformly(count: int, budget: int, rng: np.random.Generator) -> Tensor:
    """Draw positions of a uniform pull among `count` candidates: int64, ascending, at most as many as there are."""
    return torch.from_numpy(np.sort(rng.choice(count, min(budget, count), replace=False)))


def draw(probability: Tensor, budget: int, rng: np.random.Generator) -> Tensor:
    """Draw positions without replacement by their probabilities: int64, ascending, none of probability 0."""
    p = probability.numpy()
    count = min(budget, int((p > 0).sum()))
    return torch.from_numpy(np.sort(rng.choice(len(p), count, replace=False, p=p / p.sum())))
