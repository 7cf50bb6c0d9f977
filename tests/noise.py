"""Noise of private updates from a seed: it protects nothing, and can be repeated by a test."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.methods.averaging.noise import Normal


def seeded_normal(generator: torch.Generator) -> Normal:
    """Return a function that draws standard normal values of a shape from a seeded generator."""

    def draw(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)

    return draw
