"""Gaussian noise of private updates, from the operating system's generator.

Anyone who can repeat the noise can subtract it. So it has no seed, and its bits are stored nowhere.

Source: Box and Muller 1958. Values have double precision and end at 8.6 standard deviations. The lowest bits of a sum
of floating-point noise can reveal something (Mironov 2012); this module does not prevent that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Normal = Callable[[Sequence[int]], Tensor]
"""A function that draws standard normal values of a shape: float64, on the CPU."""
BLOCK = 1 << 20
"""Values that are drawn at once."""
UNIT = 2.0**-53
"""The distance between two of the uniform values that normal ones are made of."""


def secret_normal(shape: Sequence[int]) -> Tensor:
    """Draw standard normal values that cannot be drawn again.

    Args:
        shape: of the tensor; () for one value.

    Returns:
        float64 of that shape, on the CPU.
    """
    remaining = math.prod(shape)
    parts = []
    while remaining:
        count = min(remaining, BLOCK)
        parts.append(_box_muller(count))
        remaining -= count
    values = np.concatenate(parts) if parts else np.zeros(0)
    return torch.from_numpy(values).reshape(tuple(shape))


def _box_muller(count: int) -> np.ndarray:
    """Return standard normal values (count,) from 64 random bits each."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log((bits[0] + 1.0) * UNIT))
    angle = 2.0 * math.pi * UNIT * bits[1]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
