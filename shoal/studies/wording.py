"""How numbers and verdicts of claims are written, in the terminal and on pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.studies.claims import CheckedClaim, Verdict
from shoal.studies.intervals import Interval

SIGNIFICANT = 2
"""Digits that the half-width of an interval, or a smallest difference, is written with."""


def decimals(scale: float) -> int:
    """Digits after the point that show a number of this size with `SIGNIFICANT` digits."""
    if scale == 0 or not math.isfinite(scale):
        return 1
    return max(0, SIGNIFICANT - 1 - math.floor(math.log10(abs(scale))))


def number(value: float, scale: float | None = None, *, signed: bool = False) -> str:
    """A number as exactly as `scale` (by default its own size) allows."""
    digits = decimals(value if scale is None else scale)
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    return text if float(text.replace(",", "")) else f"{0:.{digits}f}"


def given(value: float, *, signed: bool = False) -> str:
    """A number that somebody wrote down, as it was: with at most four digits."""
    return f"{value:{'+' if signed else ''}.4g}" if abs(value) < 1e4 else f"{value:{'+' if signed else ''},.0f}"


def interval_words(found: Interval, bound: float | None = None) -> str:
    """A mean with its 95 % interval: of differences `+0.8 [+0.2, +1.4]`, of what has a bound `50.8 [50.2, 51.4]`.

    Args:
        found: the interval of the differences.
        bound: what was taken off each value.
    """
    signed = bound is None
    mean = found.mean + (bound or 0.0)
    if found.low is None or found.high is None:
        return number(mean, signed=signed)
    half = (found.high - found.low) / 2
    ends = (number(end + (bound or 0.0), half or abs(mean), signed=signed) for end in (found.low, found.high))
    return f"{number(mean, half or abs(mean), signed=signed)} [{', '.join(ends)}]"


def measured(claim: CheckedClaim) -> str:
    """What was measured, in words; empty where nothing was."""
    if claim.interval is None:
        return ""
    return counted(claim) if claim.every_seed else f"{interval_words(claim.interval, claim.bound)}, {counted(claim)}"


def counted(claim: CheckedClaim) -> str:
    """On how many of the seeds a claim is true by itself; and how many were planned, where those are not as many."""
    seeds = len(claim.of_seeds)
    planned = f", {claim.seeds} planned" if seeds != claim.seeds else ""
    return f"true on {claim.met} of {seeds} seed{'s' * (seeds != 1)}{planned}"


def why(claim: CheckedClaim) -> str:
    """What a verdict leaves open, in words."""
    found = claim.interval
    parts = []
    if claim.verdict is Verdict.UNSEEN and found is not None and found.visible is not None:
        parts.append(f"below {number(found.visible)}, which {found.seeds} seeds can see")
    if claim.looked_for is not None and found is not None and (found.visible or 0) > claim.looked_for:
        parts.append(f"too few seeds for the {given(claim.looked_for)} looked for")
    return "; ".join(filter(None, (*parts, claim.note)))


def table(head: Sequence[str], body: Sequence[Sequence[str]], sides: str) -> str:
    """A table in Markdown; `sides` has l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    escaped = [[value.replace("|", "\\|") for value in row] for row in body]
    return "\n".join(f"| {' | '.join(row)} |" for row in (list(head), rule, *escaped))
