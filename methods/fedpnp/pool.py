"""The past negatives pool: which samples of a batch an anchor is pushed away from, and how right that is.

Shapes: n samples, c clusters; views a and b of one sample are rows i of two matrices of soft labels.
Source: Miao and Koyuncu 2024, eq. 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from methods.base import MethodError

Similarity = Literal["gaussian", "dot", "literal"]
LEAST = {"gaussian": math.exp(-1), "literal": 1.0}
"""The lowest similarity that two soft labels can have; that of `dot` is 0."""
FORMULA = {"gaussian": "exp(cos(u, v) - 1)", "literal": "exp(u.v)"}
DROPPED, SAME, DROPPED_SAME = "pool_dropped", "pairs_same", "pairs_dropped_same"
"""Shares of all pairs of distinct samples: left out of the pool; of one class; both."""


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
        u, v = (t / t.norm(dim=1, keepdim=True).clamp(min=1e-12) for t in (u, v))
        return (u @ v.T - 1).exp()
    return u @ v.T if kind == "dot" else (u @ v.T).exp()


def past_negatives(y_a: Tensor, y_b: Tensor, mu: float, kind: Similarity) -> tuple[Tensor, Tensor]:
    """The past negatives pools (eq. 3): masks (n, n) for the anchors of view a and of view b.

    Row i of the first marks every j != i with s(y_i^a, y_j^t) < mu for both views t.
    """
    others = distinct(y_a)
    aa, ab, bb = similarity(y_a, y_a, kind), similarity(y_a, y_b, kind), similarity(y_b, y_b, kind)
    return others & (aa < mu) & (ab < mu), others & (bb < mu) & (mu > ab.T)


def distinct(rows: Tensor) -> Tensor:
    """The mask (n, n) of pairs of distinct rows."""
    return ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def pool_shares(pools: tuple[Tensor, Tensor], classes: Tensor | None) -> dict[str, Tensor]:
    """Shares of the pairs of distinct samples, over the pools of both views.

    Args:
        pools: masks (n, n), as `past_negatives` gives them.
        classes: true labels (n,), for judging alone; None where there are none.

    Returns:
        `DROPPED`; with labels also `SAME` and `DROPPED_SAME`.
    """
    others = distinct(pools[0])
    dropped = torch.stack([others & ~pool for pool in pools])
    pairs = 2 * len(others) * (len(others) - 1)
    shares = {DROPPED: dropped.sum() / pairs}
    if classes is not None:
        same = others & (classes[:, None] == classes[None, :])
        shares |= {SAME: 2 * same.sum() / pairs, DROPPED_SAME: (dropped & same).sum() / pairs}
    return shares


def pool_quality(means: Mapping[str, float]) -> dict[str, float]:
    """A client's numbers of a round, with precision and recall of its pool in place of the shares of pairs.

    `pool_precision`: of the pairs that the pool left out, the share of one class; absent where it left out none.
    `pool_recall`: of the pairs of one class, the share that it left out; absent where there were none.

    >>> pool_quality({"pool_dropped": 0.2, "pairs_same": 0.1, "pairs_dropped_same": 0.05})
    {'pool_dropped': 0.2, 'pool_precision': 0.25, 'pool_recall': 0.5}
    """
    found = {name: value for name, value in means.items() if name not in (SAME, DROPPED_SAME)}
    for name, whole in (("pool_precision", DROPPED), ("pool_recall", SAME)):
        if DROPPED_SAME in means and means[whole] > 0:
            found[name] = means[DROPPED_SAME] / means[whole]
    return found
