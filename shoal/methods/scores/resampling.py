"""How much a number about samples depends on which samples were drawn: intervals of the bootstrap (Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

DRAWS = 1_000
"""Draws of samples, each as many as there are, with replacement."""


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float],
    samples: int,
    confidence: float,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> tuple[float, float]:
    """Return the percentile interval of a number over draws of samples with replacement.

    For a difference of two models the same rows go to both (paired draws): what makes a sample hard for both of them
    then cancels out.

    Args:
        statistic: of the samples in some rows, int64 (n,); a row may occur several times.
        samples: n, at least 1.
        confidence: share of the draws that the interval holds, such as 0.95.
        rng: of the draws.
        draws: number of draws.

    >>> values = np.array([0.0, 0.0, 1.0, 1.0])
    >>> rng = np.random.default_rng(0)
    >>> bootstrap_interval(lambda rows: float(values[rows].mean()), 4, 0.95, rng)
    (0.0, 1.0)
    """
    values = [statistic(rng.integers(0, samples, samples)) for _ in range(draws)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
