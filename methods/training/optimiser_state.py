"""An optimiser's state as tensors by name, for methods whose training goes on over rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from methods.base import Tensors


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str = "optimiser.") -> Tensors:
    """A copy of the state of each parameter (Adam: both moments and the step count), named `prefix` + number + key.

    Parameters count in the order in which the optimiser holds them. Learning rates and the like are settings, not
    state.
    """
    return {
        f"{prefix}{number}.{key}": value.detach().clone(memory_format=torch.contiguous_format)
        for number, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str = "optimiser."
) -> None:
    """Give a fresh optimiser over the same parameters the state in `tensors`, to the bit; others in it are ignored."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if not name.startswith(prefix):
            continue
        number, key = name[len(prefix) :].split(".", 1)
        parameter = parameters[int(number)]
        # Fused kernels walk parameter and state side by side: both need the same strides.
        same = value.shape == parameter.shape
        state.setdefault(int(number), {})[key] = (
            torch.empty_like(parameter, dtype=value.dtype).copy_(value).detach() if same else value.clone()
        )
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
