"""The past negatives pool: the samples of a batch that an anchor is pushed away from.

Shapes: n samples, c clusters; views a and b of one sample are rows i of two matrices of soft labels.
Source: Miao and Koyuncu 2024, eq. 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.methods.losses.contrastive import distinct

MIN_SIMILARITY = math.exp(-1)
"""The lowest similarity of two soft labels, which have no negative entry: at this threshold every pool is empty."""

SELF_SIMILARITY = 1 - 1e-4
"""The similarity of a soft label and itself is 1, up to rounding: at least this."""


def similarity(u: Tensor, v: Tensor) -> Tensor:
    """Return exp(cos(u, v) - 1) of soft labels u (n, c) and v (m, c), (n, m); on unit vectors exp(-|u - v|^2 / 2)."""
    unit_u = _unit(u)
    unit_v = unit_u if v is u else _unit(v)
    result: Tensor = (unit_u @ unit_v.T - 1).exp()
    return result


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp(min=1e-12)


def past_negatives(y_a: Tensor, y_b: Tensor, mu: float) -> tuple[Tensor, Tensor]:
    """Return the past negatives pools (eq. 3): masks (n, n) for the anchors of view a and of view b.

    Row i of the first marks every j != i with s(y_i^a, y_j^t) < mu for both views t.
    """
    if y_a.device.type != "cpu":
        of_a, of_b = ~past_look_alikes(torch.cat((y_a, y_b)), mu)
        return of_a, of_b
    others = distinct(y_a)
    aa = similarity(y_a, y_a) < mu
    ab = similarity(y_a, y_b) < mu
    bb = similarity(y_b, y_b) < mu
    return others & aa & ab, others & bb & ab.T


def past_look_alikes(labels: Tensor, mu: float) -> Tensor:
    """Return the samples that the pools leave out: masks (2, n, n), by anchors of view a and of view b.

    Row i marks every j with s(y_i, y_j^t) >= mu for a view t, and i itself. Fewer launches than `past_negatives` takes.

    Args:
        labels: past soft labels (2n, c) of views a, then of views b.
        mu: threshold of the similarity.
    """
    count = len(labels) // 2
    unit = _unit(labels)
    closest = (unit @ unit.T).view(2, count, 2, count).amax(2)
    alike = closest >= 1 + math.log(mu)
    if mu > SELF_SIMILARITY:
        alike = alike | ~distinct(alike[0])
    return alike
