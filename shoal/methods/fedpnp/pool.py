"""The past negatives pool: the samples of a batch that an anchor is pushed away from.

Shapes: n samples, c clusters; views a and b of one sample are rows i of two matrices of soft labels.
Source: Miao and Koyuncu 2024, eq. 3.
"""

from __future__ import annotations

import math

from torch import Tensor

from shoal.methods.losses.contrastive import same

MIN_SIMILARITY = math.exp(-1)
"""The lowest similarity of two soft labels, which have no negative entry: at this threshold every pool is empty."""

SELF_SIMILARITY = 1 - 1e-4
"""The similarity of a soft label and itself is 1, up to rounding: at least this."""


def past_look_alikes(labels: Tensor, mu: float) -> Tensor:
    """Return the samples that the past negatives pools (eq. 3) leave out: masks (2, n, n), by anchors of both views.

    Row i marks every j with s(y_i, y_j^t) >= mu for a view t, and i itself, where s(u, v) = exp(cos(u, v) - 1).

    Args:
        labels: past soft labels (2n, c) of views a, then of views b.
        mu: threshold of the similarity.
    """
    count = len(labels) // 2
    unit = labels / labels.norm(dim=1, keepdim=True).clamp(min=1e-12)
    closest = (unit @ unit.T).view(2, count, 2, count).amax(2)
    alike: Tensor = closest >= 1 + math.log(mu)
    if mu > SELF_SIMILARITY:
        alike = alike | same(alike[0])
    return alike
