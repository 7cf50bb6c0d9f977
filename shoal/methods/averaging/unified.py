"""FedU2's efficient unified aggregator: the step that moves the server towards all clients alike (Liao et al. 2024).

Each client's deviation from the server has unit length, whatever the client's size. Of all convex combinations of these
the shortest is taken (MGDA, Sener and Koltun 2018): a step against it comes nearer to every client, if any step does.

Symbols in shapes: m clients, q trained values of a model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_ITERATIONS = 10_000
GAP = 1e-12
"""The search ends once no other combination can be shorter by more than about half of this, squared length."""


def shortest_combination(gram: np.ndarray) -> np.ndarray:
    """Return the weights (m,) of the shortest convex combination of m vectors: pairwise Frank-Wolfe steps.

    Args:
        gram: inner products of the vectors, float64 (m, m).

    >>> shortest_combination(np.array([[1.0, 0.0], [0.0, 4.0]])).round(6).tolist()
    [0.8, 0.2]
    """
    count = len(gram)
    share = np.full(count, 1 / count)
    for _ in range(MAX_ITERATIONS):
        slope = gram @ share
        best = int(slope.argmin())
        used_slopes = np.where(share > 0, slope, -np.inf)
        worst = int(used_slopes.argmax())
        gap = slope[worst] - slope[best]
        if gap <= GAP:
            break
        curvature = gram[best, best] + gram[worst, worst] - 2 * gram[best, worst]
        step = share[worst]
        if curvature > 0:
            step = min(step, gap / curvature)
        share[best] += step
        share[worst] -= step
    total: float = share.sum()
    weights: np.ndarray = share / total
    return weights


def unified_step(deviations: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return twice the shortest convex combination of the clients' deviations as unit vectors, and its weights (m,).

    Args:
        deviations: the server's trained values minus each client's (m, q). A client that did not move counts as 0.
    """
    exact = deviations.double()
    units = exact / exact.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    share = shortest_combination((units @ units.T).cpu().numpy())
    return 2 * torch.from_numpy(share).to(units.device) @ units, share
