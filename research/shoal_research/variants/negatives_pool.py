"""FedSimCLR with federated K-means whose contrast leaves out an anchor's nearest samples: a pool of negatives.

FedPNP (Miao and Koyuncu 2024) leaves out the samples that a past model puts into the anchor's cluster, but clients of
different classes do not agree about the clusters of an averaged head. Neighbours by the features of the broadcast
network need no head, no cluster and no agreement. Before features say who is alike, all other samples are negatives.
On digits 0.83 to 0.93 of the pairs that the pool leaves out are of one class, and eight seeds show no gain over
training without it (docs/results/beyond.md).

Shapes: n samples of the client, d features, k components, m samples of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.federated_k_means import MIN_VARIANCE
from shoal.methods.contract.base import Client
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.losses.contrastive import contrastive, distinct, left_out_share
from shoal.methods.ssd.fedsimclr_kmeans import FedSimCLRKMeans, FedSimCLRKMeansSettings
from shoal.methods.training.local_steps import LocalSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult

ROWS = 512
"""Samples whose similarities to all others are computed at once."""
COMPONENTS = 16
"""Largest number of principal components that say who is a neighbour: a client has few samples to compute more."""
POOL_AFTER = 0.25
"""Share of the training rounds in which all other samples are still negatives."""


@dataclass(frozen=True)
class PooledSettings(FedSimCLRKMeansSettings):
    """Hyper-parameters of FedSimCLR with federated K-means, and of its pool."""

    neighbours: float = setting(
        0.05,
        "share of a client's other samples, those with the most similar features, that are not negatives of a sample "
        "in training, after a quarter of the training rounds; keep it well below the share of a class",
        gt=0,
        lt=1,
    )


class PooledFedSimCLRKMeans(FedSimCLRKMeans):
    """FedSimCLR with federated K-means whose negatives leave out neighbours."""

    name = "fedsimclr_pool"
    title = "FedSimCLR with a pool of negatives, then federated K-means"
    about = "Trains an encoder without contrasting neighbours, then clusters its features over all clients."
    Settings = PooledSettings
    settings: PooledSettings

    @classmethod
    def loss_note(cls, settings: FedSimCLRKMeansSettings, rounds: int) -> str:
        """Return when training ends, and where the pool changes the loss."""
        pooled = int(POOL_AFTER * max(1, rounds - settings.kmeans_rounds))
        jump = f" It jumps after round {pooled}: from then on a sample's neighbours are not its negatives."
        return super().loss_note(settings, rounds) + jump

    def has_pool(self, round: int) -> bool:
        """Return whether the negatives of round `round` (1-based) leave out neighbours."""
        return round > POOL_AFTER * self.training_rounds

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return FedSimCLR's local epochs; once there is a pool, their batches say who is a neighbour."""
        steps = super().local_steps(message, client)
        if not self.has_pool(client.streams.round) or len(client.train) < 2:
            return steps
        components = min(self.settings.components, COMPONENTS)
        neighbours = find_neighbours(self.own_features(message, client), self.settings.neighbours, components)
        return with_neighbours(steps, neighbours)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return NT-Xent of the projections; once there is a pool, an anchor's neighbours are not its negatives."""
        x, *neighbours = batch
        if not neighbours:
            return super().step_loss(model, parameters, batch, extra)
        with self.context.autocast():
            z_a, z_b = model(x).z.chunk(2)
        return pooled_loss(z_a, z_b, self.settings.tau, *neighbours)


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
