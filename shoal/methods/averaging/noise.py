"""Gaussian noise of private updates, from the operating system's generator.

Anyone who can repeat the noise can subtract it. So it has no seed, and its bits are stored nowhere.

Values are quantiles of the normal distribution at uniform numbers of 52 bits, and end at 8.2 standard deviations. The
lowest bits of a sum of floating-point noise can reveal something (Mironov 2012); this module does not prevent that.
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


def secret_normal(shape: Sequence[int]) -> Tensor:
    """Draw standard normal values that cannot be drawn again.

    Args:
        shape: of the tensor; () for one value.

    Returns:
        float64 of that shape, on the CPU.
    """
    return normal_of(os.urandom, shape)


def normal_of(draw: Callable[[int], bytes], shape: Sequence[int]) -> Tensor:
    """Return standard normal values, float64, from random bytes, of which `draw` returns so many."""
    from scipy.special import ndtri  # here: only private runs need it

    values = np.empty(math.prod(shape))
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        bits = np.frombuffer(draw(8 * len(block)), dtype=np.uint64) >> np.uint64(12)
        # In the middle of 2^52 equal parts of the interval from 0 to 1, neither of which is drawn.
        block[:] = ndtri((bits + 0.5) * 2.0**-52)
    return torch.from_numpy(values).reshape(tuple(shape))
