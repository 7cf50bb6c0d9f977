"""A GPU's rules, as CUDA has them: which tensors one operation may take together, and what the host must wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
"""What moves values from one device to another."""
INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""What takes indices of the host too: they are copied to the device."""
LENGTHS_OF_THE_HOST = {aten._pack_padded_sequence.default, aten._pack_padded_sequence_backward.default}
BESIDE_NUMBERS = {aten.where.self, aten.masked_fill.Tensor, aten.masked_fill_.Tensor}
"""What takes a 0-dimensional tensor of the host as a number, beside all operations element by element."""
SHAPE_BY_VALUE = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.histc.default,
    aten.repeat_interleave.Tensor,
    aten._unique.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
}
"""What cannot say the shape of its result without looking at values."""
ANSWERED_ON_THE_HOST = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
CHECKED_ON_THE_HOST = {aten._linalg_eigh.default, aten._linalg_svd.default, aten._linalg_check_errors.default}
"""What looks at the solver's verdict before it gives its result."""
ALLOCATIONS = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
HIDDEN_VIEWS = {aten._unsafe_view.default, aten.alias.default}
"""Views whose schema does not say so."""
MASKS = (torch.bool, torch.uint8)

IsOurs = Callable[[Any], bool]


def forbidden(func: Any, args: Sequence[Any], tensors: Sequence[Tensor], ours: IsOurs) -> str | None:
    """Why an operation may not take tensors of the device and of the host together; None: it may.

    Args:
        func: the operation.
        args: its positional arguments.
        tensors: all tensors among its arguments, of both devices.
        ours: whether a value is a tensor of the device.
    """
    host = [tensor for tensor in tensors if not ours(tensor)]
    if not host or len(host) == len(tensors) or func in COPIES or func in LENGTHS_OF_THE_HOST:
        return None
    if func in INDEXED:
        if not ours(args[0]):
            return "a tensor of the host is indexed by, or given values of, the device"
        values = args[2] if len(args) > 2 else None
        if isinstance(values, Tensor) and not ours(values) and values.dim():
            return "values of the host are put into a tensor of the device"
        return None
    numbers = all(tensor.dim() == 0 for tensor in host)
    if numbers and (torch.Tag.pointwise in func.tags or func in BESIDE_NUMBERS):
        changed = func._schema.is_mutable and isinstance(args[0], Tensor) and not ours(args[0])
        return "a number of the host is changed by a tensor of the device" if changed else None
    return "it takes tensors of the device and of the host"


def launches(func: Any) -> bool:
    """Whether an operation has a kernel launched: it makes no view, and does not only set memory aside."""
    if func in ALLOCATIONS or func in HIDDEN_VIEWS:
        return False
    returned = func._schema.returns
    view = returned and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)
    return not view


def waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any], ours: IsOurs) -> list[str]:
    """What the host waits for in an operation in which the device takes part: a kind for each wait."""
    if func in ANSWERED_ON_THE_HOST:
        return ["a value"]
    if func in SHAPE_BY_VALUE:
        return [f"the shape of {func.overloadpacket.__name__}"]
    if func in CHECKED_ON_THE_HOST or kwargs.get("check_errors"):
        return [f"the check of {func.overloadpacket.__name__}"]
    if func is aten.copy_.default and ours(args[0]) != ours(args[1]):
        return ["a copy to the device" if ours(args[0]) else "a copy to the host"]
    if func in INDEXED:
        return _of_indices(func, args, ours)
    return []


def _of_indices(func: Any, args: Sequence[Any], ours: IsOurs) -> list[str]:
    indices = [index for index in args[1] if index is not None]
    found = ["a copy to the device" for index in indices if not ours(index)]
    masks = [index for index in indices if ours(index) and index.dtype in MASKS]
    # One number for all entries of one mask is filled in where they are.
    filled = len(args) > 2 and args[2].numel() == 1 and len(masks) == len(indices) == 1
    return found + ["the shape of a mask's entries" for _ in masks if not filled]
