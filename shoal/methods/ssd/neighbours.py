"""A pool of negatives: which samples of a client lie so close together that they are not negatives of each other.

Shapes: n samples of the client, d features, k components, m samples of a batch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.federated_k_means import MIN_VARIANCE
from shoal.methods.losses.contrastive import contrastive, distinct, left_out_share
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import Batch, StepResult

ROWS = 512
"""Samples whose similarities to all others are computed at once."""


class Neighbours(NamedTuple):
    """Says of any two samples whether they are neighbours.

    Attributes:
        direction: (n, k), float32, unit length: two samples are similar where the angle between them is small.
        reach: (n,), float32, the smallest cosine of a neighbour of the sample.
    """

    direction: Tensor
    reach: Tensor


def find_neighbours(features: Tensor, share: float, components: int) -> Neighbours:
    """Return the neighbours of each sample: the `share` of a client's other samples most similar to it, at least one.

    Similarity is the cosine among the largest principal components of the client's features, whitened: without that
    all features of a network under ReLU point in about the same direction. Constant features make no neighbours.

    Args:
        features: (n, d), n of at least 2.
        share: between 0 and 1.
        components: the largest k.
    """
    x = features.double()
    x = x - x.mean(0)
    variances, directions = torch.linalg.eigh(x.mT @ x / max(1, len(x)))
    variances = variances.flip(0)[:components]
    directions = directions.flip(1)[:, :components]
    # A constant direction is scaled to zero instead of left out: all clients have the same shapes.
    varies = variances > MIN_VARIANCE * variances[:1].clamp_min(torch.finfo(torch.float32).tiny)
    scale = torch.where(varies, variances.clamp_min(0).rsqrt(), torch.zeros_like(variances))
    direction = F.normalize((x @ directions) * scale, dim=1).float()
    number = min(max(1, math.floor(share * (len(x) - 1))), len(x) - 1)
    reach = torch.cat([_reach(direction, start, number) for start in range(0, len(x), ROWS)])
    return Neighbours(direction, torch.where(direction.any(1), reach, torch.full_like(reach, 2.0)))


def _reach(direction: Tensor, start: int, number: int) -> Tensor:
    """Return the similarity (m,) of each of the samples from `start` on to its `number`-th nearest other sample."""
    similar = direction[start : start + ROWS] @ direction.mT
    own = torch.arange(start, start + len(similar), device=similar.device)
    similar.scatter_(1, own[:, None], -2.0)
    return similar.topk(number, 1).values[:, -1]


def far_apart(direction: Tensor, reach: Tensor) -> Tensor:
    """Return the mask (m, m) of distinct samples of a batch of which neither is a neighbour of the other.

    Args:
        direction: (m, k), see `Neighbours`.
        reach: (m,).
    """
    similar = direction @ direction.mT
    return distinct(direction) & (similar < torch.minimum(reach[:, None], reach[None, :]))


def with_neighbours(steps: LocalSteps, neighbours: Neighbours) -> LocalSteps:
    """Return steps whose batches also hold direction and reach of their samples."""

    def select(positions: Tensor) -> Batch:
        return *steps.select(positions), neighbours.direction[positions], neighbours.reach[positions]

    def inputs(batch: Batch) -> Batch:
        return *steps.inputs(batch[:1]), *batch[1:]

    return replace(steps, select=select, inputs=inputs, alike=(steps.alike, "pool"))


def pooled_loss(z_a: Tensor, z_b: Tensor, tau: float, direction: Tensor, reach: Tensor) -> StepResult:
    """Return NT-Xent without the neighbours among an anchor's negatives, and the share of pairs left out.

    Args:
        z_a, z_b: projections of both views, (m, p).
        tau: the temperature.
        direction, reach: of the batch, see `Neighbours`.
    """
    negatives = far_apart(direction, reach)
    pools = (negatives, negatives)
    return contrastive(z_a, z_b, tau, pools), {"pool_dropped": left_out_share(~torch.stack(pools))}
