"""Local losses that CF-CL's exchange can serve: a network, its loss on a batch, and the embedding that selects.

Each loss is a class here; `method.loss` names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.methods.cfcl.selection import triplet_loss
from shoal.methods.losses.align_uniform import align_loss, uniform_loss
from shoal.methods.losses.contrastive import cluster_contrastive, contrastive
from shoal.models.heads import ClusterNet, UnitEmbedding

TAU = 0.5
"""Temperature of the simclr loss and of fedcc's instance loss, as in FedSimCLR and FedCC."""
TAU_CLUSTER = 1.0
"""Temperature of fedcc's cluster loss."""


class LocalLoss(ABC):
    """The loss that a device minimises.

    Attributes:
        raw_anchor: the first view of a sample is the sample itself, not an augmentation of it.
    """

    raw_anchor = False

    def build(self, encoder: nn.Module, clusters: int) -> nn.Module:
        """Return the network to train."""
        return UnitEmbedding(encoder)

    def embed(self, network: nn.Module, x: Tensor) -> Tensor:
        """Return unit embeddings (n, e)."""
        result: Tensor = network(x)
        return result

    @abstractmethod
    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return the loss of a batch (2n, ...), first views, then second views; `Triplet` takes negatives (n, ...)."""


class Triplet(LocalLoss):
    """CF-CL's own (eq. 1): anchor the sample, positive an augmentation, negative any other sample."""

    raw_anchor = True

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return the triplet loss; without negatives, each is the next sample of the batch, whose order is random."""
        if negatives is None:
            anchor, positive = network(views).chunk(2)
            return triplet_loss(anchor, positive, anchor.roll(1, 0))
        anchor, positive, other = network(torch.cat((views, negatives))).chunk(3)
        return triplet_loss(anchor, positive, other)


class NTXent(LocalLoss):
    """FedSimCLR's loss: every other sample of the batch is a negative."""

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return NT-Xent of the two views."""
        a, b = network(views).chunk(2)
        return contrastive(a, b, TAU)


class AlignUniform(LocalLoss):
    """SSD's alignment and uniformity."""

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return alignment plus the mean uniformity of both views."""
        a, b = network(views).chunk(2)
        return align_loss(a, b) + (uniform_loss(a) + uniform_loss(b)) / 2


class ContrastiveClustering(LocalLoss):
    """FedCC's loss, with its instance and cluster heads; samples are chosen by the instance output."""

    def build(self, encoder: nn.Module, clusters: int) -> nn.Module:
        """Return the encoder with both heads."""
        return ClusterNet(encoder, clusters)

    def embed(self, network: nn.Module, x: Tensor) -> Tensor:
        """Return the instance output."""
        result: Tensor = network(x).z
        return result

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return instance loss plus cluster loss."""
        output = network(views)
        z_a, z_b = output.z.chunk(2)
        y_a, y_b = output.y.chunk(2)
        return contrastive(z_a, z_b, TAU) + cluster_contrastive(y_a, y_b, TAU_CLUSTER)


def local_loss(name: str) -> LocalLoss:
    """Return a loss by name: triplet, simclr, ssd or fedcc."""
    losses: dict[str, Callable[[], LocalLoss]] = {
        "triplet": Triplet,
        "simclr": NTXent,
        "ssd": AlignUniform,
        "fedcc": ContrastiveClustering,
    }
    return losses[name]()
