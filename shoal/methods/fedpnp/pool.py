"""The past negatives pool: which samples of a batch an anchor is pushed away from.

Shapes: n samples, c clusters; views a and b of one sample are rows i of two matrices of soft labels.
Source: Miao and Koyuncu 2024, eq. 3.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from shoal.methods.contract.context import MethodError
from shoal.methods.scores.pool_quality import distinct

Similarity = Literal["gaussian", "dot", "literal"]
LEAST = {"gaussian": math.exp(-1), "literal": 1.0}
"""The lowest similarity that two soft labels can have; that of `dot` is 0."""
FORMULA = {"gaussian": "exp(cos(u, v) - 1)", "literal": "exp(u.v)"}


def check_threshold(mu: float, kind: Similarity) -> None:
    """Refuse a threshold that no pair of soft labels comes below.

    Raises:
        MethodError: with it every pool is empty. Soft labels have no negative entry, so that cos(u, v) and u.v are
            at least 0.
    """
    least = LEAST.get(kind, 0.0)
    if mu <= least:
        raise MethodError(
            f"method.similarity {kind} with method.mu {mu}: {FORMULA.get(kind, 'u.v')} >= {least:.4g} for soft labels, "
            f"so every negatives pool is empty; use gaussian with mu 0.999 (the paper's), or a mu above {least:.4g}"
        )


def similarity(u: Tensor, v: Tensor, kind: Similarity) -> Tensor:
    """Similarity of soft labels u (n, c) and v (m, c), as an (n, m) matrix.

    `gaussian` is exp(cos(u, v) - 1), which on unit vectors is exp(-|u - v|^2 / 2).
    """
    if kind == "gaussian":
        unit = {id(t): t / t.norm(dim=1, keepdim=True).clamp(min=1e-12) for t in (u, v)}  # once, where both are one
        result: Tensor = (unit[id(u)] @ unit[id(v)].T - 1).exp()
        return result
    return u @ v.T if kind == "dot" else (u @ v.T).exp()


def past_negatives(y_a: Tensor, y_b: Tensor, mu: float, kind: Similarity) -> tuple[Tensor, Tensor]:
    """The past negatives pools (eq. 3): masks (n, n) for the anchors of view a and of view b.

    Row i of the first marks every j != i with s(y_i^a, y_j^t) < mu for both views t.
    """
    others = distinct(y_a)
    if y_a.device.type != "cpu":  # all at once: a third of the launches
        labels = torch.cat((y_a, y_b))
        below = (similarity(labels, labels, kind) < mu).view(2, len(y_a), 2, len(y_a))
        pools = others & below[:, :, 0] & below[:, :, 1]
        return pools[0], pools[1]
    aa, ab, bb = similarity(y_a, y_a, kind), similarity(y_a, y_b, kind), similarity(y_b, y_b, kind)
    return others & (aa < mu) & (ab < mu), others & (bb < mu) & (mu > ab.T)
