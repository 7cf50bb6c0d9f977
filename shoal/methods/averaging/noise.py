"""Gaussian noise of private updates: from the operating system's generator or, for tests alone, from a seed.

Whoever can repeat the noise can subtract it. So secret noise has no seed: its bits come from the operating system's
generator, one by one, and are kept nowhere. Noise from a seed hides nothing, since the seed of a run is public.

Source: Box and Muller 1958. Values are double precision and end at 8.6 standard deviations. Noise of floating-point
numbers can tell something by the lowest bits of a sum (Mironov 2012): nothing here prevents that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Normal = Callable[[Sequence[int]], Tensor]
"""Draws standard normal values of a shape: float64, on the CPU."""
BLOCK = 1 << 20
"""Values that are drawn at once."""
UNIT = 2.0**-53
"""The distance between two of the uniform values that normal ones are made of."""


def secret_normal(shape: Sequence[int]) -> Tensor:
    """Draw standard normal values that nobody can draw again.

    Args:
        shape: of the tensor; () for one value.

    Returns:
        float64 of that shape, on the CPU.
    """
    left = math.prod(shape)
    parts = []
    while left:
        count = min(left, BLOCK)
        parts.append(_box_muller(count))
        left -= count
    values = np.concatenate(parts) if parts else np.zeros(0)
    return torch.from_numpy(values).reshape(tuple(shape))


def seeded_normal(generator: torch.Generator) -> Normal:
    """Draw from a seeded generator, for tests: this noise protects nothing."""

    def draw(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)

    return draw


def _box_muller(count: int) -> np.ndarray:
    """Standard normal values (count,) of 64 random bits each."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64).reshape(2, pairs) >> np.uint64(11)
    radius = np.sqrt(-2.0 * np.log((bits[0] + 1.0) * UNIT))
    angle = 2.0 * math.pi * UNIT * bits[1]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]
