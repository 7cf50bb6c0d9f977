"""An optimiser's state as tensors by name, for methods whose training continues over rounds.

Several clients' networks may be one stack, whose optimiser has a row of state for each of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors

OPTIMISER = "optimiser."
"""Prefix of the optimiser's tensors in a client's memory."""
STEP = "step"
"""The count of steps: the only entry of a parameter's state that is a number, without a row for each client."""


def optimiser_tensors(optimiser: torch.optim.Optimizer, row: int | None = None) -> Tensors:
    """Return a copy of each parameter's state (Adam: moments and step count), named `OPTIMISER` + number + key.

    Parameters are numbered in the optimiser's order. Learning rates and the like are settings, not state.

    Args:
        optimiser: of one network, or over the stacked parameters of several clients' networks.
        row: of the client in the stack; None: there is none.
    """
    return {
        f"{OPTIMISER}{number}.{key}": (value if row is None or key == STEP else value[row])
        .detach()
        .clone(memory_format=torch.contiguous_format)
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


def restore_rows(optimiser: torch.optim.Optimizer, tensors: Sequence[Mapping[str, Tensor]]) -> None:
    """Give a fresh optimiser over stacked parameters the states of several clients' optimisers, row by row.

    Args:
        optimiser: over parameters (k, ...).
        tensors: the states of k clients as `optimiser_tensors` returns them, with equal `steps_before`.
    """
    names = [name for name in tensors[0] if name.startswith(OPTIMISER)]
    rows = {name: [client[name] for client in tensors] for name in names}
    stacked = {name: parts[0] if _counts_steps(name) else torch.stack(parts) for name, parts in rows.items()}
    restore_optimiser(optimiser, stacked)


def _counts_steps(name: str) -> bool:
    return name.endswith(f".{STEP}")


def _with_strides_of(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a parameter's state; fused kernels walk both side by side, so that strides must be the same."""
    if value.shape != parameter.shape:
        return value.clone()
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value).detach()


def steps_before(tensors: Mapping[str, Tensor]) -> Hashable:
    """Return what must be equal for several optimisers to continue as one: names of their state, and step counts."""
    return tuple(
        (name, float(tensor) if _counts_steps(name) else None)
        for name, tensor in tensors.items()
        if name.startswith(OPTIMISER)
    )


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
