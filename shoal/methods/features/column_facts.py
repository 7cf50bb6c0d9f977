"""What rules about methods want to know of columns, from sums over clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.methods.clustering.federated_k_means import summed
from shoal.methods.features.space import column_moments


def are_counts(x: Tensor) -> bool:
    """Return whether values are whole numbers, none below 0, more than half of them 0 and some above 1."""
    whole = bool((x == x.round()).all()) and bool((x >= 0).all())
    return whole and bool((x > 1).any()) and float((x == 0).double().mean()) > 0.5


def column_spread(parts: Sequence[Tensor], column_widths: tuple[int, ...]) -> float:
    """Return the largest over the median standard deviation of the measurements that vary, from sums over clients.

    Args:
        parts: vectors of each client, (n, d).
        column_widths: see `DataSpec.column_widths`.
    """
    total = summed(map(column_moments, parts))
    mean = total["total"] / total["samples"]
    variance = total["squares"] / total["samples"] - mean.square()
    variance = variance.masked_fill(variance <= 1e-12 * mean.square(), 0)
    widths = column_widths or (1,) * len(variance)
    measured = torch.stack([group.sum() for group in variance.split(list(widths))])
    deviation = measured[measured > 0].sqrt()
    if not len(deviation):
        return 1.0
    return float(deviation.max() / deviation.median())
