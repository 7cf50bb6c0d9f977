"""Claims judged on seeds that come in stages, with a rule for when to stop that is fixed before the first seed.

After 3, 10 and 20 seeds the interval of the differences is looked at. An interval that is looked at three times misses
the truth more often than one that is looked at once, so every look has a share of the rate of error: after a part t of
all seeds the share t^3 is spent, which is close to O'Brien and Fleming's boundary, early looks being strict. The shares
of the looks add up to 2.5 % to either side, so that the rate holds however the looks depend on each other.

A claim is settled at a look whose interval excludes the margin, at a look that sees a smaller difference than the one
that is looked for, and at the last look.
"""

from __future__ import annotations

import functools

from scipy import stats

from shoal_research.intervals import MISS_RATE, Interval

STAGES = (3, 10, 20)
"""Seeds at each look."""
POWER_OF_SHARE = 3


def spent(seeds: int) -> float:
    """Return the one-sided rate of error that is spent after so many seeds, of 2.5 % in all."""
    return MISS_RATE / 2 * (seeds / STAGES[-1]) ** POWER_OF_SHARE


@functools.cache
def errors_at(seeds: int) -> float:
    """Return how many standard errors the interval of a look extends to either side.

    Args:
        seeds: one of `STAGES`.

    >>> [round(errors_at(seeds), 1) for seeds in STAGES]
    [77.0, 3.6, 2.2]
    """
    before = max((stage for stage in STAGES if stage < seeds), default=0)
    share = spent(seeds)
    if before:
        share -= spent(before)
    return float(stats.t.isf(share, seeds - 1))


def sees_enough(found: Interval, looked_for: float | None) -> bool:
    """Return whether a look sees a smaller difference than the one that is looked for."""
    return looked_for is not None and found.visible is not None and found.visible < looked_for


def next_stage(seeds: int) -> int | None:
    """Return the first stage with more than so many seeds; None after the last."""
    return next((stage for stage in STAGES if stage > seeds), None)
