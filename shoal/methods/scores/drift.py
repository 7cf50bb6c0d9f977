"""Whether new samples are spread over clusters, or over the sphere, as old ones are; thresholds by bootstrap.

Symbols in shapes: n samples, c clusters, d features, b bootstrap draws.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

DRAWS = 2_000
"""Bootstrap draws of cluster shares: cheap, since only counts are drawn."""
PAIRED_DRAWS = 300
"""Bootstrap draws of features, each of which costs as many steps as there are pairs."""


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon distance of distributions (..., c), base 2: 0 where they are equal, 1 where they share nothing.

    The square root of the divergence (Endres and Schindelin 2003), which makes it a metric.

    >>> float(jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    1.0
    """
    middle = (p + q) / 2

    def to_middle(a: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            result: np.ndarray = np.where(a > 0, a * np.log2(a / middle), 0.0).sum(-1)
            return result

    divergence = (to_middle(np.asarray(p, dtype=float)) + to_middle(np.asarray(q, dtype=float))) / 2
    result: np.ndarray = np.sqrt(np.clip(divergence, 0.0, 1.0))
    return result


def share_drift(
    old: np.ndarray, new: np.ndarray, clusters: int, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Distance of the cluster shares of old and new samples, and what it exceeds with probability `level` by chance.

    The threshold is of pairs of samples, as large as the two, that are both drawn with replacement from the old ones:
    what the same source gives.

    Args:
        old, new: clusters, int (n,) each, values in 0 .. c - 1, at least one sample.
        clusters: c.
        level: probability of a false alarm, in (0, 1).
        rng: of the bootstrap.

    Returns:
        The Jensen-Shannon distance, and its threshold.
    """
    before, after = (np.bincount(each, minlength=clusters) / len(each) for each in (old, new))
    first = rng.multinomial(len(old), before, DRAWS) / len(old)
    second = rng.multinomial(len(new), before, DRAWS) / len(new)
    by_chance = jensen_shannon(first, second)
    return float(jensen_shannon(before, after)), float(np.quantile(by_chance, 1 - level, method="higher"))


def uniformity_drift(
    old: np.ndarray, new: np.ndarray, level: float, rng: np.random.Generator
) -> tuple[float, float, tuple[float, float]]:
    """Uniformity of old and of new features, and between which values that of so many old ones lies by chance.

    Uniformity is -log of the mean of exp(-2 |u - v|^2) over pairs of distinct samples (Wang and Isola 2020), for unit
    features. A bootstrap draw takes as many old samples as there are new ones, with replacement; a sample and its
    copies are no pair.

    Args:
        old, new: features (n, d), at least two samples each.
        level: probability of a false alarm, in (0, 1), half of it on either side.
        rng: of the bootstrap.

    Returns:
        Of the old, of the new, and the bounds.
    """
    kernel, fresh = _kernel(old), _kernel(new)
    drawn = []
    for _ in range(PAIRED_DRAWS):
        times = rng.multinomial(len(new), np.full(len(old), 1 / len(old))).astype(float)
        pairs = times.sum() ** 2 - (times**2).sum()
        if pairs > 0:
            drawn.append(_log_mean(times @ kernel @ times, pairs))
    bounds = np.quantile(drawn, [level / 2, 1 - level / 2]) if drawn else np.array([-np.inf, np.inf])
    return _uniformity(kernel), _uniformity(fresh), (float(bounds[0]), float(bounds[1]))


def _kernel(features: np.ndarray) -> np.ndarray:
    """exp(-2 |u - v|^2) of each pair of unit features (n, n), 0 for a sample and itself."""
    u = F.normalize(torch.from_numpy(np.ascontiguousarray(features)).double(), dim=1)
    kernel = (4 * (u @ u.T).clamp(-1, 1) - 4).exp()
    kernel.fill_diagonal_(0)
    return kernel.numpy()


def _uniformity(kernel: np.ndarray) -> float:
    return _log_mean(kernel.sum(), len(kernel) * (len(kernel) - 1))


def _log_mean(total: float, pairs: float) -> float:
    return float(-np.log(max(total / pairs, 1e-300)))
