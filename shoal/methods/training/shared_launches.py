"""One launch for all layers of a step, where each layer would ask for one of its own.

Under autocast every convolution and every linear layer casts its weights in each pass, and their gradients are cast
back one by one. Every BatchNorm adds 1 to its count of batches. On a GPU each of these is a launch that costs more than
its work. Here all weights of a step's networks are cast by one launch, all their gradients by another, and all counts
are raised by a third. The numbers are those of autocast and of BatchNorm.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from shoal.methods.contract.context import Context
from shoal.models.network_copies import copy_all

TRACKED = "num_batches_tracked"
"""The name of BatchNorm's count of batches."""
LOW = torch.bfloat16
"""The lower precision of `Context.autocast`."""


class _Count:
    """Stands for BatchNorm's count of batches during a step, and notes what it is asked to add."""

    def __init__(self) -> None:
        self.passes = 0

    def add_(self, number: int) -> None:
        self.passes += number


class _Cast(torch.autograd.Function):
    """Cast all weights by one launch, and their gradients by one."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.weights = weights
        return _cast(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        found = [each for each in gradients if each is not None]
        # With the strides of the weights: the optimiser's kernels walk both side by side.
        wide = [torch.empty_like(w) for w, g in zip(ctx.weights, gradients, strict=True) if g is not None]
        copy_all(wide, found)
        rest = iter(wide)
        return tuple(None if each is None else next(rest) for each in gradients)


def _cast(weights: Iterable[Tensor]) -> tuple[Tensor, ...]:
    own = [weight.detach() for weight in weights]
    low = [torch.empty_like(weight, dtype=LOW) for weight in own]
    copy_all(low, own)
    return tuple(low)


class SharedLaunches:
    """What the layers of a step's networks do together.

    Args:
        networks: the trained network and its companions.
        context: gives device and precision. On a CPU and without a context every layer works on its own.
    """

    def __init__(self, networks: Iterable[nn.Module], context: Context | None) -> None:
        self._norms: list[_BatchNorm] = []
        self._trained: list[tuple[dict[str, Any], str]] = []
        self._fixed: list[tuple[dict[str, Any], str]] = []
        self._active = context is not None and context.device.type != "cpu"
        if context is None or not self._active:
            return
        modules = {module: None for network in networks for module in network.modules()}
        for module in modules:
            if isinstance(module, _BatchNorm):
                if module.momentum is not None and module._buffers.get(TRACKED) is not None:
                    self._norms.append(module)
            elif isinstance(module, nn.Linear | _ConvNd) and context.precision == "bf16":
                self._add_weights(module)

    def _add_weights(self, module: nn.Module) -> None:
        slots = cast("dict[str, Any]", module._parameters)
        for name, parameter in slots.items():
            if parameter is not None and parameter.dtype == torch.float32:
                (self._trained if parameter.requires_grad else self._fixed).append((slots, name))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Let the passes within this context use weights that were cast together, and count batches together."""
        if not self._active:
            yield
            return
        slots = [*self._trained, *self._fixed]
        parameters = [own[name] for own, name in slots]
        counts = [module._buffers[TRACKED] for module in self._norms]
        stand_ins = [_Count() for _ in counts]
        low = (*self._cast_trained(), *_cast(parameters[len(self._trained) :]))
        for (own, name), weight in zip(slots, low, strict=True):
            own[name] = weight
        for module, stand_in in zip(self._norms, stand_ins, strict=True):
            module._buffers[TRACKED] = stand_in  # type: ignore[assignment]
        try:
            yield
        finally:
            for (own, name), parameter in zip(slots, parameters, strict=True):
                own[name] = parameter
            for module, count in zip(self._norms, counts, strict=True):
                module._buffers[TRACKED] = count
        self._count(cast("list[Tensor]", counts), stand_ins)

    def _cast_trained(self) -> tuple[Tensor, ...]:
        weights = [own[name] for own, name in self._trained]
        return cast("tuple[Tensor, ...]", _Cast.apply(*weights)) if weights else ()

    @torch.no_grad()
    def _count(self, counts: list[Tensor], stand_ins: list[_Count]) -> None:
        for passes in Counter(each.passes for each in stand_ins):
            if passes:
                same = [count for count, each in zip(counts, stand_ins, strict=True) if each.passes == passes]
                torch._foreach_add_(same, passes)
