"""Intervals of differences over seeds, and which difference so many seeds could have seen.

Differences are taken pair by pair: two cells with the same seed share partition, first weights and draws, and what they
share cancels. Their mean has a Student t interval with one degree of freedom less than there are pairs, which is exact
where differences are normal and holds well where they are not far from it.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import brentq

LEVEL = 0.05
"""The two-sided rate at which intervals miss the true difference: they are 95 % intervals."""
POWER = 0.8
"""The rate at which a difference that could be seen is seen."""


@dataclass(frozen=True)
class Interval:
    """The mean of some differences and how sure it is.

    Attributes:
        mean: of the differences.
        deviation: of a single difference over seeds; None of a single one.
        low, high: the ends of the 95 % Student t interval of the mean; None of a single difference.
        visible: the smallest true difference that so many seeds with this deviation see, two-sided at 5 %, in 80 % of
            all draws of seeds; None of a single difference.
        seeds: how many differences there are.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    visible: float | None
    seeds: int


def interval_of(differences: Sequence[float]) -> Interval:
    """The interval of the mean of at least one difference."""
    count, mean = len(differences), statistics.fmean(differences)
    if count < 2:
        return Interval(mean, None, None, None, None, count)
    deviation = statistics.stdev(differences)
    half = quantile(count) * deviation / math.sqrt(count)
    return Interval(mean, deviation, mean - half, mean + half, visible_difference(count, deviation), count)


def quantile(seeds: int) -> float:
    """How many standard errors the interval reaches to either side of the mean of this many differences."""
    return float(stats.t.ppf(1 - LEVEL / 2, seeds - 1))


def visible_difference(seeds: int, deviation: float) -> float:
    """The smallest true difference whose interval lies beyond 0 in 80 % of all draws.

    Args:
        seeds: the number of differences, 2 or more.
        deviation: of a single difference over seeds.
    """
    return standard_errors_seen(seeds) * deviation / math.sqrt(seeds)


@functools.cache
def standard_errors_seen(seeds: int) -> float:
    """The same in standard errors of the mean: 2.8 with many seeds, 5.7 with three."""
    # The measured deviation is drawn too. Its distribution is taken at many equally likely points; scipy's noncentral
    # t has no value where two seeds need it.
    points = (np.arange(4096) + 0.5) / 4096
    edges = quantile(seeds) * np.sqrt(stats.chi2.ppf(points, seeds - 1) / (seeds - 1))

    def missed(shift: float) -> float:
        seen = stats.norm.sf(edges - shift) + stats.norm.cdf(-edges - shift)
        return POWER - float(seen.mean())

    return float(brentq(missed, 0.0, 1e3))


def failures_seen(seeds: int) -> float:
    """The smallest share of failing seeds of which this many seeds show at least one in 80 % of all draws."""
    return float(1 - (1 - POWER) ** (1 / seeds))
