"""Claims of a paper, judged on the numbers that a study measured with each seed.

A claim compares two numbers of the same seed, or a number and a bound, and asks on which side of its margin the 95 %
interval of the differences lies (`shoal.studies.intervals`). A claim on every seed is judged seed by seed. The study
names the number of seeds beforehand, and a claim is judged once they have run: an interval that is checked after each
added seed, until it lies on the wanted side, is no 95 % interval.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal.studies.definition import Claim, Gap, Quantity, Study
from shoal.studies.intervals import Interval, failures_seen, interval_of
from shoal.studies.rows import StudyRow

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
    """The interval lies on the claimed side of 0, but below the margin."""
    OPPOSITE = "opposite"
    """The interval lies on the other side of the margin; for a claim on every seed: a seed does."""
    UNSEEN = "too small to see here"
    """The interval contains the margin."""
    GPU = "needs a GPU"
    """Only the scale paper can decide the claim, and this is another scale."""
    MISSING = "not measured"
    """Runs are missing, or a seed has no number."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and its verdict.

    Attributes:
        claim: the statement in words.
        verdict: on the statement.
        note: why the claim could not be judged, or what limits the verdict; mostly empty.
        interval: of left minus right, or left minus the bound, seed by seed; None where no seed has both.
        differences: left minus right, one for each seed.
        of_seeds: the seed of each difference.
        seeds: number of seeds that the study names beforehand.
        margin: of the claim, in the unit of the metric.
        looked_for: smallest difference that matters, named beforehand; None where the study names none.
        met: number of seeds on which the statement is true.
        every_seed: whether the statement must hold for each seed.
        bound: the number that the left side is compared with; None where the right side is measured.
    """

    claim: str
    verdict: Verdict
    note: str
    interval: Interval | None
    differences: tuple[float, ...]
    of_seeds: tuple[int, ...]
    seeds: int
    margin: float
    looked_for: float | None
    met: int
    every_seed: bool = False
    bound: float | None = None


def check(study: Study, scale: str, claim: Claim, rows: Sequence[StudyRow]) -> CheckedClaim:
    """Judge a claim of a study on its rows at a scale."""
    measured = differences(claim, rows)
    found = None
    if measured:
        found = interval_of(list(measured.values()))
    planned = study.seeds_of(claim, scale)
    met = sum(meets(claim, difference) for difference in measured.values())
    note = ""
    if claim.decidable == "paper" and scale != "paper":
        verdict = Verdict.GPU
    elif found is None or found.seeds < planned:
        verdict = Verdict.MISSING
        note = missing(claim, rows, len(measured), planned)
    elif claim.every_seed:
        verdict = Verdict.OPPOSITE
        if met == found.seeds:
            verdict = Verdict.REPRODUCED
            note = f"{found.seeds} seeds show a failing share of {failures_seen(found.seeds):.0%} or more"
    else:
        verdict = judge(claim, found)
        if found.low is None:
            note = "a single seed has no interval"
    return CheckedClaim(
        claim=claim.claim,
        verdict=verdict,
        note=note,
        interval=found,
        differences=tuple(measured.values()),
        of_seeds=tuple(measured),
        seeds=planned,
        margin=claim.margin,
        looked_for=study.difference_looked_for(claim),
        met=met,
        every_seed=claim.every_seed,
        bound=claim.right if isinstance(claim.right, float) else None,
    )


def judge(claim: Claim, found: Interval) -> Verdict:
    """Return the verdict on the interval of a claim's differences."""
    if found.low is None or found.high is None:
        return Verdict.UNSEEN
    if claim.op == "within":
        return judge_within(claim.margin, found.low, found.high)
    low = found.low
    high = found.high
    margin = claim.margin
    if claim.op in ("<", "<="):  # mirrored, so that the claimed side is above the margin
        low = -found.high
        high = -found.low
        margin = -claim.margin
    beyond = OPERATORS[">=" if "=" in claim.op else ">"]
    if beyond(low, margin):
        return Verdict.REPRODUCED
    if high < margin:
        if low > 0 and not isinstance(claim.right, float):
            return Verdict.SMALLER
        return Verdict.OPPOSITE
    return Verdict.UNSEEN


def judge_within(margin: float, low: float, high: float) -> Verdict:
    """Return the verdict on a claim that the difference is at most the margin, given the ends of its interval."""
    if -margin <= low and high <= margin:
        return Verdict.REPRODUCED
    if low > margin or high < -margin:
        return Verdict.OPPOSITE
    return Verdict.UNSEEN


def meets(claim: Claim, difference: float) -> bool:
    """Return whether the statement is true of a single seed."""
    if claim.op == "within":
        return abs(difference) <= claim.margin
    return OPERATORS[claim.op](difference, claim.margin)


def differences(claim: Claim, rows: Sequence[StudyRow]) -> dict[int, float]:
    """Return left minus right for each seed that has the numbers of both."""
    found = {quantity: by_seed(quantity, rows) for quantity in claim.quantities()}
    seeds = set.intersection(*(set(values) for values in found.values()))

    def value(side: Gap | Quantity | float, seed: int) -> float:
        if isinstance(side, Gap):
            return found[side.above][seed] - found[side.below][seed]
        if isinstance(side, Quantity):
            return found[side][seed]
        return side

    return {seed: value(claim.left, seed) - value(claim.right, seed) for seed in sorted(seeds)}


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


def missing(claim: Claim, rows: Sequence[StudyRow], measured: int, planned: int) -> str:
    """Return why a claim has fewer seeds than planned, in words."""
    for quantity in claim.quantities():
        cell = [row for row in rows if (row.row_key, row.column_key) == (quantity.row, quantity.column)]
        run = {seed for row in cell for seed in row.of_seeds}
        row = row_of(quantity, rows)
        if row is not None and not row.of_seeds:
            return f"{quantity.metric} is one number for all seeds together"
        with_value = 0
        if row:
            with_value = len(row.of_seeds)
        if with_value < planned <= len(run):
            return f"{quantity.metric} has a value on {with_value} of {len(run)} seeds"
    if measured:
        return f"{measured} of {planned} seeds"
    return ""
