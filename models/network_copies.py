"""Copies of networks, cheap enough for a client that takes few steps.

`copy.deepcopy` walks through every attribute of every layer: of a small network that takes as long as a gradient step.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

IMMUTABLE = frozenset((type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size))
CONTAINERS = (dict, set)
"""Types of a layer's attributes that are copied themselves, while their contents are shared."""
EMPTIED = frozenset((dict, set, OrderedDict))
"""Types of which an empty one is as good as a copy of an empty one."""


def copy_network(network: nn.Module) -> nn.Module:
    """Return a network with the same values that shares no tensor with the first, like `copy.deepcopy`.

    A parameter with several names stays one parameter. Hooks are shared.
    """
    copies = _Copies()
    made = copies.module(network)
    copies.fill()
    return made


class _Copies:
    """The parts of a network that were copied, by the address of the original; values of tensors are copied at last."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._targets: list[Tensor] = []
        self._values: list[Tensor] = []

    def fill(self) -> None:
        """Give all tensors their values: all of one type at once."""
        copy_all(self._targets, self._values)

    def module(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module whose tensors have no values yet."""
        if id(module) in self._seen:
            result: nn.Module = self._seen[id(module)]
            return result
        made = module.__class__.__new__(module.__class__)
        self._seen[id(module)] = made
        own = made.__dict__
        own.update(vars(module))
        for name, value in own.items():
            kind = type(value)
            if kind in IMMUTABLE:
                continue
            if kind in EMPTIED and not value:
                own[name] = kind()  # most hooks: a layer has a dozen of them
            else:
                own[name] = self._attribute(name, value)
        return made

    def _attribute(self, name: str, value: Any) -> Any:
        if type(value) is tuple and all(type(each) in IMMUTABLE for each in value):
            return value
        if name == "_modules":
            return type(value)((k, v if v is None else self.module(v)) for k, v in value.items())
        if name in ("_parameters", "_buffers"):
            return type(value)((k, v if v is None else self._tensor(v)) for k, v in value.items())
        if name.startswith("_") and isinstance(value, CONTAINERS):
            return value.copy()
        return copy.deepcopy(value, self._seen)

    def _tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._seen:
            value = tensor.detach()
            target = torch.empty_like(value, memory_format=torch.preserve_format)
            self._targets.append(target)
            self._values.append(value)
            made = nn.Parameter(target, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else target
            self._seen[id(tensor)] = made
        result: Tensor = self._seen[id(tensor)]
        return result


def copy_all(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes, with one launch for each pair of types.

    Tensors that lie otherwise than those they are copied into, or elsewhere, take a launch each.

    Args:
        to: written in place.
        source: as many tensors.
    """
    kinds: dict[tuple[torch.dtype, torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
    for target, value in zip(to, source, strict=True):
        same = _lie_alike(target, value)
        targets, values = kinds.setdefault((target.dtype, value.dtype, same), ([], []))
        targets.append(target)
        values.append(value)
    with torch.no_grad():
        for (_, _, same), (targets, values) in kinds.items():
            if same:
                torch._foreach_copy_(targets, values)
                continue
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)


def _lie_alike(target: Tensor, value: Tensor) -> bool:
    return target.stride() == value.stride() and target.device == value.device
