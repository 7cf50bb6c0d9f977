"""Copies of networks, cheap enough for a client that takes few steps.

`copy.deepcopy` walks through every attribute of every layer: of a small network that takes as long as a gradient step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

IMMUTABLE = frozenset((type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size))
CONTAINERS = (dict, set)
"""Types of a layer's attributes that are copied themselves, while their contents are shared."""


def copy_network(network: nn.Module) -> nn.Module:
    """Return a network with the same values that shares no tensor with the first, like `copy.deepcopy`.

    A parameter with several names stays one parameter. Hooks are shared; compiled code is not copied.
    """
    return _copy(network, {})


def _copy(module: nn.Module, seen: dict[int, Any]) -> nn.Module:
    if id(module) in seen:
        result: nn.Module = seen[id(module)]
        return result
    made = module.__class__.__new__(module.__class__)
    seen[id(module)] = made
    own = made.__dict__
    own.update(vars(module))
    for name, value in own.items():
        if type(value) not in IMMUTABLE:
            own[name] = _attribute(name, value, seen)
    return made


def _attribute(name: str, value: Any, seen: dict[int, Any]) -> Any:
    if type(value) is tuple and all(type(each) in IMMUTABLE for each in value):
        return value
    if name == "_modules":
        return type(value)((k, v if v is None else _copy(v, seen)) for k, v in value.items())
    if name in ("_parameters", "_buffers"):
        return type(value)((k, v if v is None else _tensor(v, seen)) for k, v in value.items())
    if name == "_compiled_call_impl":
        return None
    if name.startswith("_") and isinstance(value, CONTAINERS):
        return value.copy()
    return copy.deepcopy(value, seen)


def _tensor(tensor: Tensor, seen: dict[int, Any]) -> Tensor:
    if id(tensor) not in seen:
        own = tensor.detach().clone(memory_format=torch.preserve_format)
        made = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
        seen[id(tensor)] = made
    result: Tensor = seen[id(tensor)]
    return result


def copy_all(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes, with one launch for each kind of tensor.

    Args:
        to: written in place.
        source: as many tensors.
    """
    kinds: dict[tuple[torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for target, value in zip(to, source, strict=True):
        same = target.stride() == value.stride() and target.dtype == value.dtype and target.device == value.device
        targets, values = kinds.setdefault((target.dtype, same), ([], []))
        targets.append(target)
        values.append(value)
    with torch.no_grad():
        for (_, same), (targets, values) in kinds.items():
            if same:
                torch._foreach_copy_(targets, values)
                continue
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """Return `network.state_dict()` without running its hooks, for a network whose buffers are all persistent."""
    return dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers(remove_duplicate=False))
