"""Alignment and uniformity on the unit sphere, as pure functions (Wang and Isola 2020).

Shapes: n samples, d dimensions of unit projections z; views a and b of a sample are rows i of two matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.methods.losses.fused_uniformity import fused_uniformity


def align_loss(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Return the mean squared distance of unit projections of two views.

    >>> align_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor(2.)
    """
    return (z_a - z_b).pow(2).sum(1).mean()


def uniform_loss(z: Tensor) -> Tensor:
    """Return the log of the mean over pairs of distinct rows of exp(-2 |z_i - z_j|^2): 0 where all are one point."""
    return torch.pdist(z, p=2).pow(2).mul(-2).exp().mean().log()


def uniform_loss_of_views(z: Tensor) -> Tensor:
    """Return the mean of `uniform_loss` over both views of unit projections z (2n, d)."""
    z_a, z_b = z.chunk(2)
    if z.device.type != "cpu":
        return fused_uniformity(z.view(2, len(z_a), -1))
    return (uniform_loss(z_a) + uniform_loss(z_b)) / 2
