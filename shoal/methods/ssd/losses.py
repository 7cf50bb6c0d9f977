"""Losses of SSD as pure functions: dimension-scaled regularisation and projector distillation.

Shapes: n samples, d dimensions of features h and projections z; views a and b of a sample are rows i of two matrices.
Source: Fang, Lin, King, Zhang, Soft Separation and Distillation, 2025.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.losses.unit_rows import unit_rows


def subspace_dimensions(dimensions: int, clients: int, seed: int) -> Tensor:
    """Return the dimensions of each client's subspace S_k, int64 (clients, dimensions // clients): random and disjoint.

    They depend on the seed and the client ids alone: nothing travels, and it does not matter who takes part.
    """
    order = torch.randperm(dimensions, generator=Streams(seed).torch("subspaces"))
    size = dimensions // clients
    return order[: clients * size].view(clients, size)


def subspace_basis(dimensions: int, seed: int) -> Tensor:
    """Return the shared random orthonormal basis Q (d, d) of the subspaces."""
    drawn = torch.randn((dimensions, dimensions), generator=Streams(seed).torch("basis"), dtype=torch.float64)
    result: Tensor = torch.linalg.qr(drawn)[0].float()
    return result


def dsr_loss(z: Tensor, scale: Tensor, basis: Tensor, views: int = 2) -> Tensor:
    """Dimension-scaled regularisation: pull projections towards themselves stretched along the client's subspace.

    It is |Z - T|_F / n, as in the released code, and the mean of it over views; the target T has no gradient.

    Args:
        z: unit projections (views * n, d), view by view.
        scale: d_k (d,): alpha on S_k, 1 elsewhere.
        basis: Q (d, d).
        views: of each sample.
    """
    turned = z @ basis
    away = turned - unit_rows(turned.detach() * scale)
    squares = away.view(views, -1).square().sum(1)
    # The norm has no gradient at zero.
    return squares.clamp(min=1e-24).sqrt().sum() / len(z)


def distill_loss(h: Tensor, z: Tensor, temperature: float) -> Tensor:
    """Return KL(softmax(h / T) || softmax(z / T)), mean over samples: features learn from projections.

    Args:
        h: raw features (n, d).
        z: raw projections (n, d).
        temperature: T.
    """
    log_p = F.log_softmax(h / temperature, dim=1)
    log_q = F.log_softmax(z / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum() / len(log_p)
