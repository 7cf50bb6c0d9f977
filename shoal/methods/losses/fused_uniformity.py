"""Uniformity of several views at once, as one operation with a gradient of its own: a quarter of the launches."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def _offsets(rows: int, device: torch.device) -> Tensor:
    """Return what is added to 4 cos of each pair, (rows, rows): exponentials then sum up to their mean over pairs."""
    found = torch.full((rows, rows), -4 - math.log(rows * (rows - 1)), device=device)
    return found.fill_diagonal_(-math.inf)


class _Uniformity(torch.autograd.Function):
    """The mean over views of log mean exp(-2 |z_i - z_j|^2) over pairs of distinct unit rows, (views, n, d)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(unit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # |z_i - z_j|^2 is 2 - 2 cos.
        products = torch.baddbmm(unit[:, :, :1], unit, unit.transpose(1, 2), beta=0, alpha=4)
        parts = (products + _offsets(unit.shape[1], unit.device)).exp()
        means = parts.sum((1, 2), keepdim=True)
        return means.log().mean(), parts, means

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Tensor:
        unit, parts, means = ctx.saved_tensors
        # Each pair counts twice, and 4 cos has the factor 4.
        factors: Tensor = gradient / means
        return torch.baddbmm(unit[:, :, :1], parts, unit, beta=0, alpha=8 / len(unit)) * factors


def fused_uniformity(unit: Tensor) -> Tensor:
    """Return the mean of `uniform_loss` over views of unit rows, (views, n, d)."""
    loss: Tensor = _Uniformity.apply(unit)[0]
    return loss
