"""Intervals and visible differences on normal pairs whose difference is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shoal_research.intervals import failures_seen, interval_of, quantile, visible_difference

DRAWS = 4000


def pairs(seeds: int, effect: float, draws: int = DRAWS) -> np.ndarray:
    """Differences of normal pairs, (draws, seeds): effect on average, deviation 1. What pairs share varies by 3."""
    rng = np.random.default_rng([seeds, round(1000 * effect)])
    shared = 3 * rng.standard_normal((draws, seeds))
    noise = rng.standard_normal((2, draws, seeds)) / math.sqrt(2)
    return (shared + effect + noise[0]) - (shared + noise[1])


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_intervals_hold_the_true_difference_in_95_of_100_draws(seeds: int) -> None:
    found = [interval_of(list(differences)) for differences in pairs(seeds, 0.7)]
    covered = np.mean([one.low <= 0.7 <= one.high for one in found if one.low is not None and one.high is not None])
    assert covered == pytest.approx(0.95, abs=0.012), "three standard errors of 4,000 draws are 0.010"


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_the_visible_difference_is_seen_in_80_of_100_draws(seeds: int) -> None:
    effect = visible_difference(seeds, 1.0)
    found = [interval_of(list(differences)) for differences in pairs(seeds, effect)]
    power = np.mean([one.low > 0 or one.high < 0 for one in found if one.low is not None and one.high is not None])
    assert power == pytest.approx(0.80, abs=0.02), "three standard errors are 0.019"


def test_intervals_are_those_of_the_paired_t_test() -> None:
    left, right = [0.61, 0.64, 0.60, 0.66], [0.60, 0.61, 0.61, 0.62]
    found = interval_of([a - b for a, b in zip(left, right, strict=True)])
    theirs = stats.ttest_rel(left, right).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    assert found.mean == pytest.approx(0.0175)
    assert found.seeds == 4
    assert quantile(3) == pytest.approx(4.3027, abs=1e-4), "printed tables, 2 degrees of freedom"


def test_visible_differences_are_those_of_printed_tables() -> None:
    """Cohen's d of a paired t test at 80 % and two-sided 5 %: 10 pairs see 0.996, 20 see 0.660, 34 see 0.495."""
    for seeds, printed in ((10, 0.996), (20, 0.660), (34, 0.495)):
        assert visible_difference(seeds, 1.0) == pytest.approx(printed, abs=0.002)
        assert visible_difference(seeds, 2.5) == pytest.approx(2.5 * printed, abs=0.005)


def test_a_single_difference_has_no_interval() -> None:
    found = interval_of([0.3])
    assert (found.mean, found.seeds) == (0.3, 1)
    assert found.low is found.high is found.visible is found.deviation is None


def test_failing_seeds_that_are_seen() -> None:
    share = failures_seen(5)
    assert (1 - share) ** 5 == pytest.approx(0.2), "in one draw of five all seeds are fine nonetheless"
