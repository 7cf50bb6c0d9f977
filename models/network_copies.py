"""Copies of networks, and of many tensors at once, cheap enough for a client that takes few steps."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

EMPTIED = frozenset((dict, set, OrderedDict))
"""Types of which an empty one is as good as a copy of an empty one."""


def copy_network(network: nn.Module) -> nn.Module:
    """Return `copy.deepcopy` of a network in half the time: a layer has a dozen hooks, most of them empty."""
    copies: dict[int, Any] = {}
    for module in network.modules():
        copies |= {id(value): type(value)() for value in vars(module).values() if type(value) in EMPTIED and not value}
    return copy.deepcopy(network, copies)


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
