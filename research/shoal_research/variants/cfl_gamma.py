"""`gamma_max: measured`: the approximation noise gamma_i (eq. 16) from two disjoint halves of a client's own data.

A client's update is its group's pull s plus the noise e of its few samples. Halves a and b of its samples, trained for
as many steps from the same weights, give s + e_a and s + e_b. Their noises are independent and have twice the variance
of e. So |a - b|^2 / 4 estimates |e|^2, <a, b> estimates |s|^2, and gamma_i is the root of their ratio. One
number travels.

Criterion (39) then takes the median over a cluster's clients. The paper's largest (eq. 31) is of no use here: with 100
images a client single estimates scatter from 0.5 to infinity (where <a, b> is not positive), and one client with an
infinite estimate would forbid every split.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NOTHING_SHARED = 1e3
"""Gamma where the halves do not pull the same way at all: then no bipartition meets criterion (39)."""


def halves(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw two disjoint halves of `count` positions, int64 (count // 2,) each; an odd one is left out."""
    order = torch.randperm(count, generator=generator)
    size = count // 2
    return order[:size], order[size : 2 * size]


def gamma_of(first: Tensor, second: Tensor) -> float:
    """Return the relative noise of the update of all samples, from the updates (p,) of two disjoint halves of them.

    >>> gamma_of(torch.tensor([1.0, 0.2]), torch.tensor([1.0, -0.2]))
    0.2041...
    """
    noise = float((first.double() - second.double()).square().sum()) / 4
    shared = float(first.double() @ second.double())
    if shared <= 0:
        return NOTHING_SHARED
    return min(math.sqrt(noise / shared), NOTHING_SHARED)
