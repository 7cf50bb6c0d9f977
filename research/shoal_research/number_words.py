"""Numbers and intervals in words, with as many digits as they deserve."""

from __future__ import annotations

import math

from shoal_research.intervals import Interval

SIGNIFICANT_DIGITS = 2
"""Of the half-width of an interval, and of a smallest difference."""


def decimals(scale: float) -> int:
    """Return the digits after the point that show a number of this size with `SIGNIFICANT_DIGITS` digits."""
    if scale == 0 or not math.isfinite(scale):
        return 1
    return max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(scale))))


def sign_of(bound: float | None) -> str:
    """Return the sign of a number in a format: differences show a plus, numbers with a bound do not."""
    return "+" if bound is None else "-"


def number(value: float, scale: float | None = None, sign: str = "-") -> str:
    """Return a number with as many digits as a number of the size `scale` needs, by default its own size."""
    digits = decimals(value if scale is None else scale)
    text = f"{value:{sign},.{digits}f}"
    if float(text.replace(",", "")):
        return text
    return f"{0:.{digits}f}"


def as_written(value: float, sign: str = "-") -> str:
    """Return a number from a paper or a study's file as it was written: with at most four digits."""
    if abs(value) < 1e4:
        return f"{value:{sign}.4g}"
    return f"{value:{sign},.0f}"


def interval_words(found: Interval, bound: float | None = None) -> str:
    """Return a mean with its 95 % interval: `+0.8 [+0.2, +1.4]` of differences, `50.8 [50.2, 51.4]` with a bound.

    Args:
        found: the interval of the differences.
        bound: the number that was subtracted from each value.
    """
    sign = sign_of(bound)
    mean = found.mean + (bound or 0.0)
    if found.low is None or found.high is None:
        return number(mean, sign=sign)
    scale = (found.high - found.low) / 2 or abs(mean)
    low, high = (number(end + (bound or 0.0), scale, sign) for end in (found.low, found.high))
    return f"{number(mean, scale, sign)} [{low}, {high}]"
