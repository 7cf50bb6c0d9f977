"""Optimal bipartition of clients by the similarity of their updates (Sattler et al. 2021, algorithm 1).

Among all ways to cut the clients in two groups, the one with the smallest largest similarity across the cut. Merging
the most similar pairs until two groups are left (single linkage) is exact, and takes O(m^2) for m clients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor


class Bipartition(NamedTuple):
    """Two groups of rows, each ascending, the first with row 0; and the largest similarity across them."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    cross: float


def cosine_matrix(updates: Tensor) -> np.ndarray:
    """Cosine similarities (44) of updates (m, p), float64 (m, m) with ones on the diagonal.

    An update that is zero has similarity 0 to every other, zero ones included: nobody knows which way it pulls.
    """
    # In float64, so that a permutation of the p coordinates does not show.
    rows = updates.double()
    norms = rows.norm(dim=1)
    # The product, not the norms: of two zero updates it would be zero again.
    lengths = (norms[:, None] * norms[None, :]).clamp(min=1e-300)
    alpha = ((rows @ rows.T) / lengths).clamp(-1.0, 1.0)
    alpha.fill_diagonal_(1.0)
    result: np.ndarray = ((alpha + alpha.T) / 2).cpu().numpy()
    return result


def bipartition(alpha: np.ndarray) -> Bipartition:
    """The bipartition with the smallest largest similarity across it (eq. 25).

    Args:
        alpha: symmetric (m, m), m >= 2.

    Raises:
        ValueError: not square, fewer than two rows, or not finite.
    """
    m = len(alpha)
    if alpha.shape != (m, m) or m < 2:
        raise ValueError(f"a bipartition needs a square matrix of 2 rows or more, given shape {alpha.shape}")
    if not np.isfinite(alpha).all():
        raise ValueError("a bipartition needs finite similarities")
    from scipy.cluster.hierarchy import linkage, to_tree  # here: it takes a third of a second to import
    from scipy.spatial.distance import squareform

    last_merger = to_tree(linkage(squareform(1.0 - alpha, checks=False), "single"))
    first, second = sorted(tuple(sorted(side.pre_order())) for side in (last_merger.left, last_merger.right))
    return Bipartition(first, second, float(alpha[np.ix_(first, second)].max()))


def separation_gap(alpha: np.ndarray, truth: np.ndarray) -> float:
    """Separation gap (eq. 28): the smallest similarity inside a true group less the largest across the bipartition.

    Where it is positive the bipartition is correct: no group has clients on both sides (definition 1, corollary 1). The
    converse, which the paper adds in remark 2, does not hold: a bipartition may be correct while two clients of one
    group are less alike than it allows.

    Args:
        alpha: symmetric (m, m), m >= 2.
        truth: the group of each row, (m,).
    """
    inside = alpha[truth[:, None] == truth[None, :]]
    return float(inside.min() - bipartition(alpha).cross)


def ready_to_split(cross: float, gamma: float) -> bool:
    """Criterion (39): gamma_max < sqrt((1 - alpha_cross_max) / 2)."""
    return math.sqrt(max(0.0, (1.0 - cross) / 2.0)) > gamma
