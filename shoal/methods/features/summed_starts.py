"""Starts of K-means from sums alone, where the server reads no local centres: draws from one Gaussian of all vectors.

Symbols in shapes: k dimensions of the space, c clusters, s starts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors


def gaussian_starts(moments: Tensors, clusters: int, starts: int, generator: torch.Generator) -> Tensor:
    """Return initial centres, float64 (s, c, k), drawn with the mean and the variances of all vectors.

    Args:
        moments: the sum of all clients' `column_moments`.
        clusters: c.
        starts: s.
        generator: of the draws.

    Raises:
        MethodError: no client has enough samples.
    """
    if not moments["samples"] > 0:
        raise MethodError("no client has enough samples to start from: set method.min_points lower")
    mean = moments["total"] / moments["samples"]
    variance = (moments["squares"] / moments["samples"] - mean.square()).clamp_min(0)
    drawn = torch.randn(starts, clusters, len(mean), generator=generator, dtype=torch.float64)
    return mean + drawn * variance.sqrt()
