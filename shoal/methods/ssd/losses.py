"""Losses of SSD as pure functions: dimension-scaled regularisation, hard separation and projector distillation.

Shapes: n samples, d dimensions of features h and projections z; views a and b of a sample are rows i of two matrices.
Source: Fang, Lin, King, Zhang, Soft Separation and Distillation, 2025.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.losses.unit_rows import unit_rows

Form = Literal["code", "poster", "hard"]
Basis = Literal["random", "axis"]
Direction = Literal["poster", "code"]


def subspace_dimensions(dimensions: int, clients: int, seed: int) -> Tensor:
    """Return the dimensions of each client's subspace S_k, int64 (clients, dimensions // clients): random and disjoint.

    They depend on the seed and the client ids alone: nothing travels, and it does not matter who takes part.
    """
    order = torch.randperm(dimensions, generator=Streams(seed).torch("subspaces"))
    size = dimensions // clients
    return order[: clients * size].view(clients, size)


def subspace_basis(dimensions: int, kind: Basis, seed: int) -> Tensor:
    """Return the shared orthonormal basis Q (d, d) of the subspaces: random, or the axes themselves."""
    if kind == "axis":
        return torch.eye(dimensions)
    drawn = torch.randn((dimensions, dimensions), generator=Streams(seed).torch("basis"), dtype=torch.float64)
    result: Tensor = torch.linalg.qr(drawn)[0].float()
    return result


def dsr_loss(z: Tensor, scale: Tensor, basis: Tensor, form: Form) -> Tensor:
    """Dimension-scaled regularisation: pull projections towards themselves stretched along the client's subspace.

    Args:
        z: unit projections (n, d).
        scale: d_k (d,): alpha on S_k, 1 elsewhere.
        basis: Q (d, d).
        form: `code`: |Z - T|_F / n; else, as on the poster, the mean of |z - t|^2. The target T has no gradient.
    """
    turned = z @ basis
    target = F.normalize(turned.detach() * scale, dim=1)
    if form == "code":
        # The norm has no gradient at zero.
        return (turned - target).pow(2).sum().clamp(min=1e-24).sqrt() / len(z)
    return (turned - target).pow(2).sum(1).mean()


def dsr_loss_of_views(z: Tensor, scale: Tensor, basis: Tensor, form: Form) -> Tensor:
    """Return the mean of `dsr_loss` over both views of z (2n, d), in half of the launches."""
    count = len(z) // 2
    turned = z @ basis
    away = turned - unit_rows(turned.detach() * scale)
    if form == "code":
        squares = away.view(2, -1).square().sum(1)
        return squares.clamp(min=1e-24).sqrt().sum() / (2 * count)
    return away.square().sum() / (2 * count)


def confined(z: Tensor, inside: Tensor, basis: Tensor) -> Tensor:
    """Return the part of projections in a client's own subspace as unit vectors: hard separation.

    Args:
        z: projections (n, d).
        inside: bool (d,), true on S_k.
        basis: Q (d, d).
    """
    return F.normalize((z @ basis) * inside, dim=1)


def distill_loss(h: Tensor, z: Tensor, temperature: float, direction: Direction, *, stop: bool) -> Tensor:
    """Return the divergence of softmax(h / T) and softmax(z / T), mean over samples: features learn from projections.

    Args:
        h: raw features (n, d).
        z: raw projections (n, d).
        temperature: T.
        direction: `poster`: KL(h || z); `code`: KL(z || h).
        stop: no gradient flows into z, the teacher.
    """
    teacher = z.detach() if stop else z
    log_p = F.log_softmax(h / temperature, dim=1)
    log_q = F.log_softmax(teacher / temperature, dim=1)
    if direction == "code":
        log_p, log_q = log_q, log_p
    return (log_p.exp() * (log_p - log_q)).sum() / len(log_p)
