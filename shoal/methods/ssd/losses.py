"""Dimension-scaled regularisation and projector distillation, as pure functions.

Shapes: n samples, d dimensions of features h and projections z; views a and b of a sample are rows i of two matrices.
Source: Fang, Lin, King, Zhang, Soft Separation and Distillation, 2025.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams

Form = Literal["code", "poster"]
Basis = Literal["random", "axis"]
Direction = Literal["poster", "code"]


def subspace_dimensions(dimensions: int, clients: int, seed: int) -> Tensor:
    """The dimensions of each client's subspace S_k, int64 (clients, dimensions // clients): random and disjoint.

    A function of the seed and the client ids alone, so nothing travels, and who takes part does not matter.
    """
    order = torch.randperm(dimensions, generator=Streams(seed).torch("subspaces"))
    size = dimensions // clients
    return order[: clients * size].view(clients, size)


def subspace_basis(dimensions: int, kind: Basis, seed: int) -> Tensor:
    """The shared orthonormal basis Q (d, d) in which subspaces are taken: random, or the axes themselves."""
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
        form: `code`: |Z - T|_F / n; `poster`: the mean of |z - t|^2. The target T has no gradient.
    """
    turned = z @ basis
    target = F.normalize(turned.detach() * scale, dim=1)
    if form == "code":
        # The norm of a matrix that is zero has no gradient: keep away from it.
        return (turned - target).pow(2).sum().clamp(min=1e-24).sqrt() / len(z)
    return (turned - target).pow(2).sum(1).mean()


def confined(z: Tensor, inside: Tensor, basis: Tensor) -> Tensor:
    """Hard separation: the part of projections in a client's own subspace, as unit vectors.

    Args:
        z: projections (n, d).
        inside: bool (d,), true on S_k.
        basis: Q (d, d).
    """
    return F.normalize((z @ basis) * inside, dim=1)


def distill_loss(h: Tensor, z: Tensor, temperature: float, direction: Direction, *, stop: bool) -> Tensor:
    """Divergence of softmax(h / T) and softmax(z / T), mean over samples: what projections know, features learn.

    Args:
        h: raw features (n, d).
        z: raw projections (n, d).
        temperature: T.
        direction: `poster`: KL(h || z); `code`: KL(z || h).
        stop: no gradient into z, the teacher.
    """
    log_h, log_z = (F.log_softmax(t / temperature, dim=1) for t in (h, z.detach() if stop else z))
    of, against = (log_h, log_z) if direction == "poster" else (log_z, log_h)
    return (of.exp() * (of - against)).sum() / len(of)
