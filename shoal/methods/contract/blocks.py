"""Large tensors in blocks that stay in a core's cache while several operations read them.

An operation on a whole model reads it from memory, and the next one reads it again. Element by element the bits are
the same, block by block or all at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BLOCK = 1 << 17
"""Values in a block: half a megabyte in float32, one in float64."""


def blocks(*tensors: Tensor, size: int = BLOCK) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same parts of several tensors, as views, one block after another.

    Args:
        tensors: of one shape. Tensors on a device, or of which one is not contiguous, are one block.
        size: number of values in a block.

    >>> import torch
    >>> [len(part) for (part,) in blocks(torch.zeros(2, BLOCK))]
    [131072, 131072]
    """
    first = tensors[0]
    whole = first.numel() <= size or any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors)
    if whole:
        yield tensors
        return
    flat = [tensor.view(-1) for tensor in tensors]
    for start in range(0, first.numel(), size):
        yield tuple(each[start : start + size] for each in flat)
