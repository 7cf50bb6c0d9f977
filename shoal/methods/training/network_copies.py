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
"""What a layer keeps its parts in, beside its tensors: copied themselves, with what is in them shared."""


def copy_network(network: nn.Module) -> nn.Module:
    """A network with the same values that shares no tensor with the first, as `copy.deepcopy` makes it.

    Parameters that one network has under several names stay one. Hooks are shared; compiled code is not taken along.
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
    """Copy tensors into others of the same shapes, in as few launches as there are kinds of them.

    Args:
        to: written in place.
        source: as many.
    """
    alike: dict[tuple[torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in zip(to, source, strict=True):
        same = one.stride() == other.stride() and one.dtype == other.dtype and one.device == other.device
        pairs = alike.setdefault((one.dtype, same), ([], []))
        pairs[0].append(one)
        pairs[1].append(other)
    with torch.no_grad():
        for (_, same), (into, values) in alike.items():
            if same:
                torch._foreach_copy_(into, values)
                continue
            for one, other in zip(into, values, strict=True):
                one.copy_(other)


def state_of(network: nn.Module) -> dict[str, Tensor]:
    """What `network.state_dict()` gives, without its hooks; of a network whose buffers are all part of its state."""
    return dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers(remove_duplicate=False))
