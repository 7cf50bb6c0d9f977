"""The verdict on an interval of differences, and the differences themselves, seed by seed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import StrEnum

from shoal_research.definition import Claim, Control, Gap, Quantity
from shoal_research.intervals import Interval
from shoal_research.rows import StudyRow

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Verdict(StrEnum):
    """The verdict on a claim."""

    REPRODUCED = "reproduced"
    """The interval lies on the claimed side of the margin; for a claim on every seed: each seed does."""
    SMALLER = "smaller than claimed"
    """The interval lies on the claimed side of 0, but below the margin, or below half of the paper's difference."""
    OPPOSITE = "opposite"
    """The interval lies on the other side of the margin; for a claim on every seed: a seed does."""
    UNSEEN = "too small to see"
    """The interval contains the margin, and excludes the difference that is looked for, either way."""
    UNDECIDED = "undecided"
    """The interval contains the margin and a difference that matters."""
    REGIME = "out of regime"
    """A control of the table fails, or nothing measures it."""
    NOT_RUN = "not run"
    """Only the scale paper can decide the claim, and it was not run."""
    MISSING = "not measured"
    """Runs are missing, or a seed has no number."""


DECIDED = (Verdict.REPRODUCED, Verdict.SMALLER, Verdict.OPPOSITE)
"""Verdicts on which side a difference lies."""


def judge(
    claim: Claim | Control, found: Interval, half: float | None = None, looked_for: float | None = None
) -> Verdict:
    """Return the verdict on the interval of a claim's differences.

    Args:
        claim: the claim.
        found: the interval.
        half: size of half of the paper's difference, if it prints one.
        looked_for: smallest difference that matters, if the study names one.
    """
    if found.low is None or found.high is None:
        return Verdict.UNDECIDED
    if claim.op == "within":
        return judge_within(claim.margin, found.low, found.high)
    if claim.op in ("<", "<="):  # mirrored, so that the claimed side is above the margin
        return judge_above(claim, -claim.margin, -found.high, -found.low, half, looked_for)
    return judge_above(claim, claim.margin, found.low, found.high, half, looked_for)


def judge_above(
    claim: Claim | Control, margin: float, low: float, high: float, half: float | None, looked_for: float | None
) -> Verdict:
    """Return the verdict on the claim that a difference is above a margin, given the ends of its interval."""
    if low > margin or (low == margin and "=" in claim.op):
        if half is not None and high < half:
            return Verdict.SMALLER
        return Verdict.REPRODUCED
    if high < margin:
        if low > 0 and not isinstance(claim.right, float):
            return Verdict.SMALLER
        return Verdict.OPPOSITE
    if looked_for is not None and margin - looked_for < low and high < margin + looked_for:
        return Verdict.UNSEEN
    return Verdict.UNDECIDED


def judge_within(margin: float, low: float, high: float) -> Verdict:
    """Return the verdict on a claim that the difference is at most the margin, given the ends of its interval."""
    if -margin <= low and high <= margin:
        return Verdict.REPRODUCED
    if low > margin or high < -margin:
        return Verdict.OPPOSITE
    return Verdict.UNDECIDED


def meets(claim: Claim, difference: float) -> bool:
    """Return whether the statement is true of a single seed."""
    if claim.op == "within":
        return abs(difference) <= claim.margin
    return OPERATORS[claim.op](difference, claim.margin)


def differences(claim: Claim | Control, rows: Sequence[StudyRow]) -> dict[int, float]:
    """Return left minus right for each seed that has the numbers of both; empty where a side is not measured."""
    left = claim.left
    right = claim.right
    if left is None or right is None:
        return {}
    found = {quantity: by_seed(quantity, rows) for quantity in claim.quantities()}
    seeds = set.intersection(*(set(values) for values in found.values()))

    def value(side: Gap | Quantity | float, seed: int) -> float:
        if isinstance(side, Gap):
            return found[side.above][seed] - found[side.below][seed]
        if isinstance(side, Quantity):
            return found[side][seed]
        return side

    return {seed: value(left, seed) - value(right, seed) for seed in sorted(seeds)}


def by_seed(quantity: Quantity, rows: Sequence[StudyRow]) -> dict[int, float]:
    """Return a number of the table for each seed."""
    row = row_of(quantity, rows)
    if row:
        return dict(zip(row.of_seeds, row.values, strict=True))
    return {}


def row_of(quantity: Quantity, rows: Sequence[StudyRow]) -> StudyRow | None:
    """Return the row of the table that holds a number."""
    wanted = (quantity.row, quantity.column, quantity.metric)
    return next((row for row in rows if (row.row_key, row.column_key, row.metric) == wanted), None)
