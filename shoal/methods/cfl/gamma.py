"""`gamma: measured`: the approximation noise gamma_i (eq. 16) from two disjoint halves of a client's own data.

What a client would send is its group's pull s plus noise e of its few samples. Halves a and b of its samples, trained
for as many steps from the same weights, give s + e_a and s + e_b, whose noises are independent and have twice the
variance of e. So |a - b|^2 / 4 estimates |e|^2, <a, b> estimates |s|^2, and gamma_i is the root of their ratio. One
number travels.

Criterion (39) then takes the median over a cluster's clients. The paper's largest (eq. 31) is of no use here: with 100
images a client single estimates scatter from 0.5 to infinity (where <a, b> is not positive), and one client that says
so would forbid every split.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NOTHING_SHARED = 1e3
"""Gamma where the halves do not pull the same way at all: no bipartition meets criterion (39) then."""


def halves(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two disjoint halves of `count` positions, drawn at random, int64 (count // 2,) each; an odd one is left out."""
    order = torch.randperm(count, generator=generator)
    return order[: count // 2], order[count // 2 : count // 2 * 2]


def gamma_of(first: Tensor, second: Tensor) -> float:
    """Relative noise of the update of all samples, from the updates (p,) of two disjoint halves of them.

    >>> gamma_of(torch.tensor([1.0, 0.2]), torch.tensor([1.0, -0.2]))
    0.2041...
    """
    first, second = first.double(), second.double()
    noise = float((first - second).square().sum()) / 4
    shared = float(first @ second)
    if shared <= 0:
        return NOTHING_SHARED
    return min(math.sqrt(noise / shared), NOTHING_SHARED)
