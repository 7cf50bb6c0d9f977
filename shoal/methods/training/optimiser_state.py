"""An optimiser's state as tensors by name, for methods whose training goes on over rounds.

Several clients' networks may be one stack, and the optimiser over it has a row of state for each of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors

OPTIMISER = "optimiser."
"""Prefix of the optimiser's tensors in a client's memory."""
SHARED = "step"
"""The one entry of a parameter's state that is a number and has no row for each client: the count of steps."""


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str = OPTIMISER) -> Tensors:
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


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str = OPTIMISER) -> None:
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


def restore_rows(
    optimiser: torch.optim.Optimizer, tensors: Sequence[Mapping[str, Tensor]], prefix: str = OPTIMISER
) -> None:
    """Give a fresh optimiser over stacked parameters the states of several clients' optimisers, row by row.

    Args:
        optimiser: over parameters (k, ...).
        tensors: the states of k clients as `optimiser_tensors` gives them, alike by `steps_before`.
        prefix: of the states' names; other tensors are ignored.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name in tensors[0]:
        if not name.startswith(prefix):
            continue
        number, key = name[len(prefix) :].split(".", 1)
        rows = [each[name] for each in tensors]
        # Of the parameter's strides, as in `restore_optimiser`.
        state.setdefault(int(number), {})[key] = (
            rows[0].clone()
            if key == SHARED
            else torch.empty_like(parameters[int(number)], dtype=rows[0].dtype).copy_(torch.stack(rows)).detach()
        )
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def row_tensors(optimiser: torch.optim.Optimizer, row: int, prefix: str = OPTIMISER) -> Tensors:
    """The state of one client's row of an optimiser over stacked parameters, as `optimiser_tensors` names it."""
    return {
        f"{prefix}{number}.{key}": (value if key == SHARED else value[row])
        .detach()
        .clone(memory_format=torch.contiguous_format)
        for number, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def steps_before(tensors: Mapping[str, Tensor], prefix: str = OPTIMISER) -> Hashable:
    """What optimisers must agree in to go on as one: which state there is, and after how many steps."""
    return tuple(
        (name, float(tensor) if name.endswith(f".{SHARED}") else None)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    )


def reset_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str = OPTIMISER) -> None:
    """Have an optimiser go on from the state in `tensors`, or as a fresh one; its own tensors stay where they are.

    An optimiser that has taken no step yet has none, and makes them.

    Args:
        optimiser: of which all state may be zeros before its first step, as of Adam and of SGD.
        tensors: a state, as `optimiser_tensors` gives it; without any the optimiser begins.
        prefix: of the states' names; other tensors are ignored.
    """
    given = any(name.startswith(prefix) for name in tensors)
    if not optimiser.state:
        if given:
            restore_optimiser(optimiser, tensors, prefix)
        return
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    own = {
        f"{prefix}{number}.{key}": value
        for number, parameter in enumerate(parameters)
        for key, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    with torch.no_grad():
        if not given:
            torch._foreach_zero_(list(own.values()))
            return
        for name, value in own.items():
            value.copy_(tensors[name])
