"""BatchNorm of several networks at once, as one BatchNorm over the channels of all, with statistics in float32.

torch's own rule for BatchNorm under `vmap` takes the weights out of the operation. On a GPU the rest refuses
activations in bf16 beside statistics in float32, and channels-last activations. Here a stack of B networks with C
channels is one BatchNorm of B x C channels, which every device has, in any precision and layout.
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
    """BatchNorm that under `vmap` is one BatchNorm over the channels of all rows.

    It is only called under `vmap`: its gradient is that of the operations in the rule below.
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
        if in_dims[0] is None:
            stacked = x.unsqueeze(1).expand(-1, rows, *x.shape[1:])
        else:
            # (n, rows, channels, ...): the layout after a stack's convolution, so that nothing is copied.
            stacked = x.movedim(in_dims[0], 1)
        result = F.batch_norm(
            stacked.flatten(1, 2),
            _all_rows(mean, in_dims[3], rows),
            _all_rows(variance, in_dims[4], rows),
            _all_rows(weight, in_dims[1], rows),
            _all_rows(bias, in_dims[2], rows),
            training,
            momentum,
            eps,
        )
        return result.unflatten(1, (rows, -1)), 1


def _all_rows(tensor: Tensor | None, dim: int | None, rows: int) -> Tensor | None:
    """Return a channel's tensor (rows * channels,) of a stack, whose rows lie along `dim`; None: all rows share it."""
    if tensor is None:
        return None
    if dim is None:
        return tensor.expand(rows, -1).reshape(-1)
    return tensor.movedim(dim, 0).reshape(-1)


def _forward(module: _BatchNorm, x: Tensor) -> Tensor:
    """Do the module's own forward pass, for one row of a stack."""
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
    """Make a model's BatchNorm compute as part of a stack within this context, where it is called under `vmap`."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for module in norms:
        module.forward = partial(_forward, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in norms:
            del module.__dict__["forward"]
