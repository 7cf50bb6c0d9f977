"""Numbers and verdicts of claims in words, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.review.results.summary import counted
from shoal.studies.claims import CheckedClaim, Verdict
from shoal.studies.intervals import Interval

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


def measured(claim: CheckedClaim) -> str:
    """Return what was measured, in words; empty where nothing was."""
    if claim.interval is None:
        return ""
    if claim.every_seed:
        return seeds_words(claim)
    return f"{interval_words(claim.interval, claim.bound)}, {seeds_words(claim)}"


def seeds_words(claim: CheckedClaim) -> str:
    """Return on how many of the seeds a claim is true, and the number of planned seeds if it differs."""
    seeds = len(claim.of_seeds)
    planned = ""
    if seeds != claim.seeds:
        planned = f", {claim.seeds} planned"
    return f"true on {claim.met} of {counted(seeds, 'seed')}{planned}"


def notes(claim: CheckedClaim, *others: str) -> str:
    """Return what was measured, what the verdict leaves open, and other notes, in one text."""
    return "; ".join(filter(None, (measured(claim), open_question(claim), *others)))


def open_question(claim: CheckedClaim) -> str:
    """Return what a verdict leaves open, in words."""
    found = claim.interval
    parts = []
    if claim.verdict is Verdict.UNSEEN and found is not None and found.visible is not None:
        parts.append(f"below {number(found.visible)}, which {found.seeds} seeds can see")
    if claim.looked_for is not None and found is not None and (found.visible or 0) > claim.looked_for:
        parts.append(f"too few seeds to see {as_written(claim.looked_for)}, the smallest difference that matters")
    return "; ".join(filter(None, (*parts, claim.note)))


def table(head: Sequence[str], body: Sequence[Sequence[str]], sides: str) -> str:
    """A table in Markdown; `sides` has l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    escaped = [[value.replace("|", "\\|") for value in row] for row in body]
    return "\n".join(f"| {' | '.join(row)} |" for row in (list(head), rule, *escaped))
