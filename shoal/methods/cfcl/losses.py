"""Local losses that CF-CL's exchange can serve: a network, its loss on a batch, and what samples are chosen by.

A loss is one class here; `method.loss` names it, and CF-CL's `step_loss` is it.
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


class LocalLoss(ABC):
    """What a device minimises.

    Attributes:
        raw_anchor: the first view of a sample is the sample itself, not an augmentation of it.
    """

    raw_anchor = False

    def build(self, encoder: nn.Module, clusters: int) -> nn.Module:
        """The network to train."""
        return UnitEmbedding(encoder)

    def embed(self, network: nn.Module, x: Tensor) -> Tensor:
        """Unit embeddings (n, e)."""
        result: Tensor = network(x)
        return result

    @abstractmethod
    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """The loss of first views, then second views, of a batch (2n, ...); `negatives` (n, ...): see `Triplet`."""


class Triplet(LocalLoss):
    """CF-CL's own (eq. 1): anchor the sample, positive an augmentation, negative any other sample."""

    raw_anchor = True

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Against the negatives given; without, against the next of the batch, which is in random order."""
        if negatives is None:
            anchor, positive = network(views).chunk(2)
            return triplet_loss(anchor, positive, anchor.roll(1, 0), self.margin)
        anchor, positive, other = network(torch.cat((views, negatives))).chunk(3)
        return triplet_loss(anchor, positive, other, self.margin)


class NTXent(LocalLoss):
    """FedSimCLR's."""

    def __init__(self, tau: float) -> None:
        self.tau = tau

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Every other sample of the batch is a negative."""
        a, b = network(views).chunk(2)
        return contrastive(a, b, self.tau)


class AlignUniform(LocalLoss):
    """SSD's alignment and uniformity."""

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Uniformity is the mean of both views'."""
        a, b = network(views).chunk(2)
        return align_loss(a, b) + (uniform_loss(a) + uniform_loss(b)) / 2


class ContrastiveClustering(LocalLoss):
    """FedCC's, with its instance and cluster heads; samples are chosen by the instance output."""

    def __init__(self, tau: float, tau_cluster: float = 1.0) -> None:
        self.tau, self.tau_cluster = tau, tau_cluster

    def build(self, encoder: nn.Module, clusters: int) -> nn.Module:
        """Both heads on the encoder."""
        return ClusterNet(encoder, clusters)

    def embed(self, network: nn.Module, x: Tensor) -> Tensor:
        """The instance output."""
        result: Tensor = network(x).z
        return result

    def __call__(self, network: nn.Module, views: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Instance loss plus cluster loss."""
        found = network(views)
        (z_a, z_b), (y_a, y_b) = found.z.chunk(2), found.y.chunk(2)
        return contrastive(z_a, z_b, self.tau) + cluster_contrastive(y_a, y_b, self.tau_cluster)


def local_loss(name: str, margin: float, tau: float) -> LocalLoss:
    """A loss by name: triplet, simclr, ssd or fedcc."""
    losses: dict[str, Callable[[], LocalLoss]] = {
        "triplet": lambda: Triplet(margin),
        "simclr": lambda: NTXent(tau),
        "ssd": AlignUniform,
        "fedcc": lambda: ContrastiveClustering(tau),
    }
    return losses[name]()
