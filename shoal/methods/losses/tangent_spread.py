"""FedU2's flexible uniform regulariser as its authors train it: samples spread over the sphere like random points.

Points of the sphere are compared in the tangent planes of random points, by the sliced Wasserstein distance (Liao et
al. 2024, arXiv 2403.16398, and the code that the authors released).

Shapes: n samples, m random points of the sphere, t tangent points, s directions for each of them, p dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

DIRECTIONS = 6
"""Random directions in each tangent plane."""
DIVISOR = 6
"""The authors divide the sum over tangent points by this number, and not by how many there are."""
LARGEST_COSINE = 1 - 1e-6
"""Cosines are cut here: at a pole the plane has no direction for a point."""


class SphereDraws(NamedTuple):
    """Random draws for one evaluation: `tangents` (t, p) and `points` (n, p) of the sphere, `directions` (t, s, p)."""

    tangents: Tensor
    points: Tensor
    directions: Tensor


def sphere_draws(n: int, p: int, generator: torch.Generator) -> SphereDraws:
    """Draw n tangent points, n points, and `DIRECTIONS` directions for each tangent point.

    Args:
        n: samples of a batch.
        p: dimensions.
        generator: of the draws; they are on its device.
    """
    draw = torch.randn((2 + DIRECTIONS, n, p), generator=generator, device=generator.device)
    return SphereDraws(F.normalize(draw[0], dim=1), F.normalize(draw[1], dim=1), draw[2:].transpose(0, 1))


def tangent_spread(z: Tensor, draws: SphereDraws) -> Tensor:
    """Return how far samples are from random points of the sphere, a scalar of at least 0.

    For each tangent point the logarithms of both are projected on its directions and sorted; the mean squared
    differences are summed over tangent points, and divided by `DIVISOR`.

    Args:
        z: (n, p) of unit length.
        draws: random draws for n samples.
    """
    projected = projected_logs(z, draws.tangents, draws.directions).sort(dim=2).values
    random = projected_logs(draws.points, draws.tangents, draws.directions).sort(dim=2).values
    return (projected - random).square().mean((1, 2)).sum() / DIVISOR


def projected_logs(z: Tensor, tangents: Tensor, directions: Tensor) -> Tensor:
    """Return the projections (t, s, n) of the logarithms of points z on the directions in each tangent plane.

    The logarithm of z at a point x is angle / sin(angle) (z - cos(angle) x), with the angle between them.

    Args:
        z: (n, p) of unit length.
        tangents: (t, p) of unit length.
        directions: (t, s, p).
    """
    cosine = (tangents @ z.T).clamp(-LARGEST_COSINE, LARGEST_COSINE)
    stretch = cosine.acos() / (1 - cosine.square()).sqrt()
    along = directions @ z.T - (directions * tangents[:, None]).sum(2, keepdim=True) * cosine[:, None]
    return stretch[:, None] * along
