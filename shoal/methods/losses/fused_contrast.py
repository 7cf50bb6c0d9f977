"""NT-Xent of 2n rows as one operation with a gradient of its own: a third of the launches.

Rows are views a, then views b, of n samples. An anchor is classified among all rows by its positive, the other view of
its sample.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Constants:
    """Tensors that only depend on the number of rows, 2n: made once, and never changed.

    Attributes:
        pairs: int64 (2n,), the place of each anchor's positive.
        itself: bool (2n, 2n), the anchor's own place.
        others: bool (2n, 2n), every place but the positive's.
        positive: float32 (2n, 2n), 1 at the positive's place.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.pairs = torch.arange(rows, device=device).roll(rows // 2)
        self.itself = torch.eye(rows, dtype=torch.bool, device=device)
        positive = self.itself.roll(rows // 2, 0)
        self.others = ~positive
        self.positive = positive.float()


_constants = cache(_Constants)


class _Contrast(torch.autograd.Function):
    """The loss of unit rows (2n, d), given the places that are left out for each anchor, bool (2n, 2n); None: itself.

    A positive counts, whether it is left out or not.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(unit: Tensor, left_out: Tensor | None, tau: float) -> tuple[Tensor, Tensor]:
        constants = _constants(len(unit), unit.device)
        # Without its first argument, `addmm` is a product and a factor in one launch.
        logits = torch.addmm(unit[:, :1], unit, unit.T, beta=0, alpha=1 / tau)
        mask = constants.itself if left_out is None else left_out & constants.others
        shares = logits.masked_fill(mask, torch.finfo(logits.dtype).min).log_softmax(1)
        return F.nll_loss(shares, constants.pairs), shares

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, float], output: tuple[Tensor, Tensor]) -> None:
        unit, _, ctx.tau = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unit, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None]:
        unit, shares = ctx.saved_tensors
        by_logits = shares.exp() - _constants(len(unit), unit.device).positive
        both_ways = by_logits + by_logits.T  # a row is an anchor, and one of the others of every anchor
        found = torch.addmm(unit[:, :1], both_ways, unit, beta=0, alpha=1 / (len(unit) * ctx.tau))
        return found * gradient, None, None


def fused_contrast(unit: Tensor, tau: float, left_out: Tensor | None = None) -> Tensor:
    """Return NT-Xent of unit rows.

    Args:
        unit: (2n, d), views a, then views b.
        tau: temperature.
        left_out: bool (2, n, n): for each view, row i marks the samples that anchor i is not pushed away from, itself
            among them. None: every sample but itself.
    """
    mask = None
    if left_out is not None:
        rows = len(unit)
        mask = left_out[:, :, None].expand(2, rows // 2, 2, rows // 2).reshape(rows, rows)
    loss: Tensor = _Contrast.apply(unit, mask, tau)[0]
    return loss


class _NegativeEntropies(torch.autograd.Function):
    """The sum over views of sum p log(p + eps), p the mean row of a view, for rows (views, n, c)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean = rows.mean(1)
        logarithm = (mean + eps).log()
        return (mean * logarithm).sum(), mean, logarithm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
        rows, ctx.eps = inputs
        ctx.size = rows.shape[1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None]:
        mean, logarithm = ctx.saved_tensors
        by_mean = torch.addcdiv(logarithm, mean, mean + ctx.eps) * (gradient / ctx.size)
        return by_mean[:, None].expand(-1, ctx.size, -1), None


def negative_entropies(rows: Tensor, eps: float) -> Tensor:
    """Return minus the sum of the entropies (nats) of the mean rows of several views, (views, n, c)."""
    found: Tensor = _NegativeEntropies.apply(rows, eps)[0]
    return found
