"""Heads on top of an encoder's features."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


def mlp(inputs: int, hidden: int, outputs: int, *, norm: bool = False) -> nn.Sequential:
    """Return linear, BatchNorm (with `norm`), ReLU, linear."""
    layers: list[nn.Module] = [nn.Linear(inputs, hidden)]
    if norm:
        layers.append(nn.BatchNorm1d(hidden))
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Linear(hidden, outputs))


class Views(NamedTuple):
    """Outputs of `ClusterNet` for n images: features h (n, d), instance z (n, p) of unit length, cluster y (n, c)."""

    h: Tensor
    z: Tensor
    y: Tensor


class ClusterNet(nn.Module):
    """Encoder, instance head and cluster head of contrastive clustering (Li et al. 2021).

    Args:
        encoder: a module with an attribute `features`.
        clusters: c, the width of the softmax output.
        projection: p, the width of the instance output.
        norm: BatchNorm in the instance head.
    """

    def __init__(self, encoder: nn.Module, clusters: int, projection: int = 128, *, norm: bool = False) -> None:
        super().__init__()
        width = int(encoder.features)  # type: ignore[arg-type]
        self.encoder = encoder
        self.instance = mlp(width, width, projection, norm=norm)
        self.cluster = mlp(width, width, clusters)

    def forward(self, x: Tensor) -> Views:
        """Return all three outputs, in float32 for any precision of the pass."""
        h = self.encoder(x)
        z = F.normalize(self.instance(h).float(), dim=1)
        return Views(h.float(), z, self.cluster(h).float().softmax(dim=1))

    def labels(self, x: Tensor) -> Tensor:
        """Return the cluster output y (n, c) alone: the instance head computes nothing."""
        y: Tensor = self.cluster(self.encoder(x)).float().softmax(dim=1)
        return y


class PredictedViews(NamedTuple):
    """Outputs of `ByolClusterNet` for n images: `Views`, and the prediction (n, p) of the target's instance output.

    The prediction is not normalised.
    """

    h: Tensor
    z: Tensor
    y: Tensor
    prediction: Tensor


class ByolClusterNet(ClusterNet):
    """`ClusterNet` with BatchNorm in its instance head, and a predictor of the momentum target's instance output.

    Args:
        encoder: a module with an attribute `features`.
        clusters: c, the width of the softmax output.
        projection: p, the width of the instance output and of the prediction.
    """

    def __init__(self, encoder: nn.Module, clusters: int, projection: int = 128) -> None:
        super().__init__(encoder, clusters, projection, norm=True)
        self.predictor = mlp(projection, int(encoder.features), projection, norm=True)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> PredictedViews:  # type: ignore[override]  # one output more
        """Return all four outputs, in float32 for any precision of the pass."""
        h = self.encoder(x)
        z = self.instance(h)
        prediction = self.predictor(z).float()
        y = self.cluster(h).float().softmax(dim=1)
        return PredictedViews(h.float(), F.normalize(z.float(), dim=1), y, prediction)


class Projections(NamedTuple):
    """Outputs of `ProjectionNet` for n images: features h (n, d), projection z (n, p), not normalised."""

    h: Tensor
    z: Tensor


class ProjectionNet(nn.Module):
    """Encoder and projection head (Chen et al. 2020).

    Args:
        encoder: a module with an attribute `features`.
        projection: p, the width of the output.
        hidden: width between the two layers of the head; None: as wide as the features.
        norm: BatchNorm in the head.
    """

    def __init__(
        self, encoder: nn.Module, projection: int = 128, hidden: int | None = None, *, norm: bool = False
    ) -> None:
        super().__init__()
        width = int(encoder.features)  # type: ignore[arg-type]
        self.encoder = encoder
        self.instance = mlp(width, hidden or width, projection, norm=norm)

    def forward(self, x: Tensor) -> Projections:
        """Return both outputs, in float32 for any precision of the pass."""
        h = self.encoder(x)
        return Projections(h.float(), self.instance(h).float())


class ByolNet(ProjectionNet):
    """`ProjectionNet` with BatchNorm in its head, and a predictor of another network's projection (Grill et al. 2020).

    Args:
        encoder: a module with an attribute `features`.
        projection: p, the width of the projection and of the prediction.
        hidden: width between the two layers of either head; None: as wide as the features.
        norm: BatchNorm in both heads.
    """

    def __init__(
        self, encoder: nn.Module, projection: int = 128, hidden: int | None = None, *, norm: bool = True
    ) -> None:
        super().__init__(encoder, projection, hidden, norm=norm)
        self.predictor = mlp(projection, hidden or int(encoder.features), projection, norm=norm)  # type: ignore[arg-type]


class UnitEmbedding(nn.Module):
    """An encoder whose features are unit vectors.

    Args:
        encoder: a module with an attribute `features`.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """Return unit embeddings (n, features), float32."""
        return F.normalize(self.encoder(x).float(), dim=1)
