"""Alignment and uniformity on the unit sphere, as pure functions (Wang and Isola 2020).

Shapes: n samples, d dimensions of unit projections z; views a and b of a sample are rows i of two matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor


def align_loss(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Return the mean squared distance of unit projections of two views.

    >>> align_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor(2.)
    """
    return (z_a - z_b).pow(2).sum(1).mean()


def uniform_loss(z: Tensor) -> Tensor:
    """Return the log of the mean over pairs of distinct rows of exp(-2 |z_i - z_j|^2): 0 where all are one point."""
    return torch.pdist(z, p=2).pow(2).mul(-2).exp().mean().log()
