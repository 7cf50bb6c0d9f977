"""BatchNorm of several networks at once: the channels of all of them are those of one, with statistics in float32.

torch's own rule for BatchNorm under `vmap` takes the weights out of the operation. On a GPU what is left refuses
activations in bf16 beside statistics in float32, and activations that lie channels-last. Here a stack of B networks
with C channels is one BatchNorm of B x C channels, which every device has, in any precision and layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.methods.contract.context import MethodError


class _StackedNorm(torch.autograd.Function):
    """BatchNorm that under `vmap` is one over the channels of all rows.

    Only `vmap` reaches it: the gradient is that of the operations in its rule.
    """

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, int]:
        rows = info.batch_size
        # (n, rows, channels, ...): how a convolution of a stack leaves it, so that nothing is copied.
        stacked = x.movedim(in_dims[0], 1) if in_dims[0] is not None else x.unsqueeze(1).expand(-1, rows, *x.shape[1:])
        mean, variance, weight, bias = (
            each if each is None else (each.movedim(dim, 0) if dim is not None else each.expand(rows, -1)).reshape(-1)
            for each, dim in zip((mean, variance, weight, bias), (*in_dims[3:5], *in_dims[1:3]), strict=True)
        )
        found = F.batch_norm(stacked.flatten(1, 2), mean, variance, weight, bias, training, momentum, eps)
        return found.unflatten(1, (rows, -1)), 1


def _forward(module: _BatchNorm, x: Tensor) -> Tensor:
    """As the module's own, of one row of a stack."""
    if module.momentum is None:
        raise MethodError(
            "several clients in one computation cannot have BatchNorm with momentum None: set workers.batched=1"
        )
    if module.training and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    training = module.training or module.running_mean is None
    state = (module.weight, module.bias, module.running_mean, module.running_var)
    result: Tensor = _StackedNorm.apply(x, *state, training, module.momentum, module.eps)
    return result


@contextlib.contextmanager
def stacked_norms(model: nn.Module) -> Iterator[None]:
    """Within it, a model's BatchNorm computes as part of a stack: under `vmap`, and nowhere else."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for module in norms:
        module.forward = partial(_forward, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in norms:
            del module.__dict__["forward"]
