"""An optimiser's state as tensors by name, for methods whose training continues over rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors

OPTIMISER = "optimiser."
"""Prefix of the optimiser's tensors in a client's memory."""


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> Tensors:
    """Return a copy of each parameter's state (Adam: moments and step count), named `OPTIMISER` + number + key.

    Parameters are numbered in the optimiser's order. Learning rates and the like are settings, not state.
    """
    return {
        f"{OPTIMISER}{number}.{key}": value.detach().clone(memory_format=torch.contiguous_format)
        for number, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give a fresh optimiser over the same parameters the state in `tensors`, bit for bit; ignore other tensors."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if not name.startswith(OPTIMISER):
            continue
        number, key = name[len(OPTIMISER) :].split(".", 1)
        parameter = parameters[int(number)]
        state.setdefault(int(number), {})[key] = _with_strides_of(parameter, value)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _with_strides_of(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a parameter's state; fused kernels walk both side by side, so that strides must be the same."""
    if value.shape != parameter.shape:
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value).detach()


def reset_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Set an optimiser to the state in `tensors`, or to that of a fresh one; its own tensors stay in place.

    An optimiser that has taken no step yet has no tensors, and makes them.

    Args:
        optimiser: one whose state may be all zeros before its first step, such as Adam and SGD.
        tensors: a state, as `optimiser_tensors` returns it; empty: the optimiser starts afresh.
    """
    restores = any(name.startswith(OPTIMISER) for name in tensors)
    if not optimiser.state:
        if restores:
            restore_optimiser(optimiser, tensors)
        return
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    present = {
        f"{OPTIMISER}{number}.{key}": value
        for number, parameter in enumerate(parameters)
        for key, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    with torch.no_grad():
        if not restores:
            torch._foreach_zero_(list(present.values()))
            return
        for name, value in present.items():
            value.copy_(tensors[name])
