"""How numbers and verdicts of claims are written, in the terminal and on pages."""

from __future__ import annotations

import math

from studies.claims import CheckedClaim, Verdict
from studies.definition import Claim
from studies.intervals import Interval

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


def interval_words(found: Interval) -> str:
    """A mean difference with its 95 % interval: `+0.8 [+0.2, +1.4]`."""
    if found.low is None or found.high is None:
        return number(found.mean, signed=True)
    half = (found.high - found.low) / 2 or abs(found.mean)
    mean, low, high = (number(value, half, signed=True) for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]"


def measured(claim: CheckedClaim) -> str:
    """What was measured, in words; empty where nothing was."""
    if claim.interval is None:
        return ""
    return f"{interval_words(claim.interval)}, {counted(claim)}"


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
        parts.append(f"too few seeds for the {number(claim.looked_for)} looked for")
    return "; ".join(filter(None, (*parts, claim.note)))


def rule(claim: Claim, seeds: int, looked_for: float | None) -> str:
    """What was fixed before anything was run, in words."""
    parts = [f"{seeds} seed{'s' * (seeds != 1)}"]
    if claim.every_seed:
        parts.append("each of them")
    if claim.margin:
        parts.append(f"margin {number(claim.margin)}")
    if looked_for is not None:
        parts.append(f"looking for {number(looked_for)}")
    return ", ".join(parts)
