"""Drift: how differently new and old samples spread over clusters; the threshold is a bootstrap's."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import jensenshannon

DRAWS = 2_000
"""Bootstrap draws of cluster shares: cheap, since only counts are drawn."""


def share_drift(
    old: np.ndarray, new: np.ndarray, clusters: int, level: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the distance of the cluster shares of old and new samples, and the threshold of a false alarm at `level`.

    The distance is the square root of the Jensen-Shannon divergence, base 2 (Endres and Schindelin 2003): 0 for equal
    shares, 1 for disjoint ones. The threshold comes from pairs of sets as large as the two, both drawn with replacement
    from the old samples: from the same source.

    Args:
        old, new: clusters, int (n,) each, values in 0 .. clusters - 1, at least one sample.
        clusters: how many there are.
        level: probability of a false alarm, in (0, 1).
        rng: draws the bootstrap.

    Returns:
        The distance, and its threshold.
    """
    before = np.bincount(old, minlength=clusters) / len(old)
    after = np.bincount(new, minlength=clusters) / len(new)
    first = rng.multinomial(len(old), before, DRAWS) / len(old)
    second = rng.multinomial(len(new), before, DRAWS) / len(new)
    by_chance = jensenshannon(first, second, base=2, axis=1)
    return float(jensenshannon(before, after, base=2)), float(np.quantile(by_chance, 1 - level, method="higher"))
