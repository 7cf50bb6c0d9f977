"""Which samples of a client lie so close together, by a network's features, that they are no negatives of each other.

Shapes: n samples of the client, d features, k components, m samples of a batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.federated_k_means import MIN_VARIANCE
from shoal.methods.scores.pool_quality import distinct

ROWS = 512
"""Samples whose similarities to all others are taken at once."""


class Neighbours(NamedTuple):
    """What says of any two samples whether they are neighbours.

    Attributes:
        direction: (n, k), float32, unit length: the sample among its client's, similar where the angle is small.
        reach: (n,), float32, the smallest cosine of a neighbour of the sample.
    """

    direction: Tensor
    reach: Tensor


def find_neighbours(features: Tensor, share: float, components: int) -> Neighbours:
    """Of each sample the `share` of a client's other samples that are most similar to it, at least one.

    Similarity is the cosine among the largest principal components of the client's features, whitened: as they are,
    all features of a network under ReLU point much the same way. Features that do not vary make no neighbours.

    Args:
        features: (n, d), n of at least 2.
        share: between 0 and 1.
        components: k, at most.
    """
    x = features.double()
    x = x - x.mean(0)
    variances, directions = torch.linalg.eigh(x.mT @ x / max(1, len(x)))
    variances, directions = variances.flip(0)[:components], directions.flip(1)[:, :components]
    # What does not vary is scaled to nothing instead of left out: the shapes are those of any other client.
    there = variances > MIN_VARIANCE * variances[:1].clamp_min(torch.finfo(torch.float32).tiny)
    scale = torch.where(there, variances.clamp_min(0).rsqrt(), torch.zeros_like(variances))
    direction = F.normalize((x @ directions) * scale, dim=1).float()
    nearest = min(max(1, math.floor(share * (len(x) - 1))), len(x) - 1)
    reach = [_reach(direction, start, nearest) for start in range(0, len(x), ROWS)]
    varies = direction.any(1)
    return Neighbours(direction, torch.where(varies, torch.cat(reach), torch.full_like(varies, 2.0, dtype=torch.float)))


def _reach(direction: Tensor, start: int, nearest: int) -> Tensor:
    """The similarity (m,) to its `nearest`-th nearest other sample, of samples from `start` on."""
    similar = direction[start : start + ROWS] @ direction.mT
    own = torch.arange(start, start + len(similar), device=similar.device)
    similar.scatter_(1, own[:, None], -2.0)
    return similar.topk(nearest, 1).values[:, -1]


def far_apart(direction: Tensor, reach: Tensor) -> Tensor:
    """The mask (m, m) of distinct samples of a batch of which neither is a neighbour of the other.

    Args:
        direction: (m, k), as `Neighbours` has them.
        reach: (m,).
    """
    similar = direction @ direction.mT
    return distinct(direction) & (similar < torch.minimum(reach[:, None], reach[None, :]))
