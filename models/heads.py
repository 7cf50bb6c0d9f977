"""Heads on top of an encoder's features."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


def mlp(inputs: int, hidden: int, outputs: int, *, norm: bool = False) -> nn.Sequential:
    """Linear, (BatchNorm,) ReLU, linear."""
    layers: list[nn.Module] = [nn.Linear(inputs, hidden)]
    if norm:
        layers.append(nn.BatchNorm1d(hidden))
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


class Views(NamedTuple):
    """What `ClusterNet` gives for n images: features h (n, d), instance z (n, p) of unit length, cluster y (n, c)."""

    h: Tensor
    z: Tensor
    y: Tensor


class ClusterNet(nn.Module):
    """Encoder, instance head and cluster head of contrastive clustering (Li et al. 2021).

    Args:
        encoder: a module with an attribute `features`.
        clusters: c, the width of the softmax output.
        projection: p, the width of the instance output.
    """

    def __init__(self, encoder: nn.Module, clusters: int, projection: int = 128) -> None:
        super().__init__()
        width = int(encoder.features)  # type: ignore[arg-type]
        self.encoder = encoder
        self.instance = mlp(width, width, projection)
        self.cluster = mlp(width, width, clusters)

    def forward(self, x: Tensor) -> Views:
        """All three outputs, in float32 whatever the precision of the pass."""
        h = self.encoder(x)
        z = F.normalize(self.instance(h).float(), dim=1)
        return Views(h.float(), z, self.cluster(h).float().softmax(dim=1))
