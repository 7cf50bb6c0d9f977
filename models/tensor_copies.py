"""Copies of many tensors at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
