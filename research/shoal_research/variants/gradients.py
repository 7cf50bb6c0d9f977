"""Strength of one part of a loss beside another, by the gradients of both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradient_norm(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of a loss's gradient over all parameters together, a scalar; the graph is kept.

    Args:
        loss: a scalar.
        parameters: a parameter that the loss does not depend on counts as 0.
    """
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    norms = [gradient.norm() for gradient in found if gradient is not None]
    total: Tensor = torch.stack([loss.new_zeros(()), *norms]).norm()
    return total


def gradient_share(part: Tensor, other: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the norm of the gradient of `part` over that of `other`, a scalar; 0 if `part` has no gradient."""
    return gradient_norm(part, parameters) / gradient_norm(other, parameters).clamp(min=1e-12)
