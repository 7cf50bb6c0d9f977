"""Drift: how differently new and old samples spread over clusters and over the sphere; thresholds by bootstrap.

Symbols in shapes: n samples, c clusters, d features, b bootstrap draws.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

DRAWS = 2_000
"""Bootstrap draws of cluster shares: cheap, since only counts are drawn."""
PAIRED_DRAWS = 300
"""Bootstrap draws of features: the cost of each grows with the number of pairs."""


def share_drift(
    old: np.ndarray, new: np.ndarray, clusters: int, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the distance of the cluster shares of old and new samples, and the threshold of a false alarm at `level`.

    The threshold comes from pairs of sets as large as the two, both drawn with replacement from the old samples: from
    the same source.

    Args:
        old, new: clusters, int (n,) each, values in 0 .. c - 1, at least one sample.
        clusters: c.
        level: probability of a false alarm, in (0, 1).
        rng: draws the bootstrap.

    Returns:
        The Jensen-Shannon distance (Endres and Schindelin 2003), base 2: 0 for equal shares, 1 for disjoint ones; and
            its threshold.
    """
    from scipy.spatial.distance import jensenshannon  # here: it takes seconds to import

    before = np.bincount(old, minlength=clusters) / len(old)
    after = np.bincount(new, minlength=clusters) / len(new)
    first = rng.multinomial(len(old), before, DRAWS) / len(old)
    second = rng.multinomial(len(new), before, DRAWS) / len(new)
    # Rounding may take the divergence of equal shares below 0, whose root is NaN.
    distance, by_chance = (
        np.nan_to_num(jensenshannon(one, other, base=2, axis=-1)) for one, other in ((before, after), (first, second))
    )
    return float(distance), float(np.quantile(by_chance, 1 - level, method="higher"))


def uniformity_drift(
    old: np.ndarray, new: np.ndarray, level: float, rng: np.random.Generator
) -> tuple[float, float, tuple[float, float]]:
    """Return the uniformity of old and of new features, and its bounds for as many old samples as there are new ones.

    Uniformity is -log of the mean of exp(-2 |u - v|^2) over pairs of distinct samples (Wang and Isola 2020), for unit
    features. A bootstrap draw takes as many old samples as there are new ones, with replacement; copies of one sample
    are no pair.

    Args:
        old, new: features (n, d), at least two samples each.
        level: probability of a false alarm, in (0, 1), half of it on either side.
        rng: draws the bootstrap.

    Returns:
        The uniformity of the old, that of the new, and the bounds.
    """
    kernel = _kernel(old)
    drawn = []
    for _ in range(PAIRED_DRAWS):
        times = rng.multinomial(len(new), np.full(len(old), 1 / len(old))).astype(float)
        pairs = times.sum() ** 2 - (times**2).sum()
        if pairs > 0:
            drawn.append(_log_mean(times @ kernel @ times, pairs))
    bounds = np.quantile(drawn, [level / 2, 1 - level / 2]) if drawn else np.array([-np.inf, np.inf])
    return _uniformity(kernel), _uniformity(_kernel(new)), (float(bounds[0]), float(bounds[1]))


def _kernel(features: np.ndarray) -> np.ndarray:
    """Return exp(-2 |u - v|^2) of each pair of unit features (n, n), with 0 on the diagonal."""
    u = F.normalize(torch.from_numpy(np.ascontiguousarray(features)).double(), dim=1)
    kernel = (4 * (u @ u.T).clamp(-1, 1) - 4).exp()
    kernel.fill_diagonal_(0)
    return kernel.numpy()


def _uniformity(kernel: np.ndarray) -> float:
    return _log_mean(kernel.sum(), len(kernel) * (len(kernel) - 1))


def _log_mean(total: float, pairs: float) -> float:
    return float(-np.log(max(total / pairs, 1e-300)))
