"""Numbers and intervals in words, with as many digits as they deserve, and tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SIGNIFICANT_DIGITS = 2
"""Of the half-width of an interval."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def interval_words(interval: Interval, bound: float | None = None) -> str:
    """Return a mean with its 95 % interval: `+0.8 [+0.2, +1.4]` of differences, `50.8 [50.2, 51.4]` with a bound.

    Args:
        interval: the interval of the differences.
        bound: the number that was subtracted from each value.
    """
    size = (interval.high - interval.low) / 2 or abs(interval.mean)
    digits = 1
    if size > 0 and math.isfinite(size):
        digits = max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(size)))
    sign = "+" if bound is None else "-"
    mean, low, high = (
        f"{round(end + (bound or 0.0), digits) + 0.0:{sign},.{digits}f}"
        for end in (interval.mean, interval.low, interval.high)
    )
    return f"{mean} [{low}, {high}]"


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its first column to the left and the others to the right."""
    lines = [" | ".join(head), *(" | ".join(value.replace("|", "\\|") for value in row) for row in body)]
    first, *others = (f"| {line} |" for line in lines)
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return "\n".join([first, f"|{rule}|", *others])


def between(text: str, begin: str, end: str, made: str) -> str:
    """Return a text in which what lies between two marks is made again."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
