"""Intervals of differences over seeds, and the smallest difference that a number of seeds can see.

Differences are taken pair by pair: two cells with the same seed share partition, first weights and draws, whose effect
cancels. The mean has a Student t interval with one degree of freedom less than there are pairs. It is exact for normal
differences, and close for differences that are nearly normal.
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

MISS_RATE = 0.05
"""The two-sided rate at which intervals miss the true difference: they are 95 % intervals."""
POWER = 0.8
"""The rate at which the smallest visible difference is seen."""


@dataclass(frozen=True)
class Interval:
    """The mean of differences, and how certain it is.

    Attributes:
        mean: of the differences.
        deviation: of a single difference over seeds; None where there is only one.
        low, high: ends of the Student t interval of the mean, of 95 % where no other quantile is given; None where
            there is only one difference.
        visible: smallest true difference whose interval excludes 0 in 80 % of all draws of so many seeds with this
            deviation; None where there is only one difference.
        seeds: number of differences.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    visible: float | None
    seeds: int


def interval_of(differences: Sequence[float], errors: float | None = None) -> Interval:
    """Return the interval of the mean of at least one difference.

    Args:
        differences: one for each seed.
        errors: standard errors that it extends to either side; by default those of a 95 % interval.
    """
    count = len(differences)
    mean = statistics.fmean(differences)
    if count < 2:
        return Interval(mean, None, None, None, None, count)
    deviation = statistics.stdev(differences)
    half = (errors or quantile(count)) * deviation / math.sqrt(count)
    return Interval(mean, deviation, mean - half, mean + half, visible_difference(count, deviation, errors), count)


def quantile(seeds: int) -> float:
    """Return how many standard errors the interval of so many differences extends to either side of the mean."""
    return float(stats.t.ppf(1 - MISS_RATE / 2, seeds - 1))


def visible_difference(seeds: int, deviation: float, errors: float | None = None) -> float:
    """Return the smallest true difference whose interval excludes 0 in 80 % of all draws.

    Args:
        seeds: number of differences, at least 2.
        deviation: of a single difference over seeds.
        errors: standard errors that the interval extends to either side; by default those of a 95 % interval.
    """
    return standard_errors_seen(seeds, errors or quantile(seeds)) * deviation / math.sqrt(seeds)


@functools.cache
def standard_errors_seen(seeds: int, errors: float) -> float:
    """Return the smallest visible difference in standard errors of the mean: of 95 % intervals 5.7 with three seeds.

    Args:
        seeds: number of differences, at least 2.
        errors: standard errors that the interval extends to either side.
    """
    # The measured deviation is random too: its distribution is evaluated at many equally likely points, since scipy's
    # noncentral t has no value where two seeds need it.
    points = (np.arange(4096) + 0.5) / 4096
    edges = errors * np.sqrt(stats.chi2.ppf(points, seeds - 1) / (seeds - 1))

    def missed(shift: float) -> float:
        powers = stats.norm.sf(edges - shift) + stats.norm.cdf(-edges - shift)
        return POWER - float(powers.mean())

    return float(brentq(missed, 0.0, 1e3))


def failures_seen(seeds: int) -> float:
    """Return the smallest share of failing seeds of which so many seeds show at least one in 80 % of all draws."""
    return float(1 - (1 - POWER) ** (1 / seeds))
