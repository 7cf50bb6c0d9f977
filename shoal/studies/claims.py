"""Claims of a paper, judged on what the rows of a study measured with each seed.

A claim compares two numbers of the same seed, or a number and a bound, and asks on which side of its margin the 95 %
interval of the differences lies (`shoal.studies.intervals`). A claim on every seed asks each seed by itself. As many
seeds must have been run as the study said beforehand: an interval that is looked at again and again while seeds come
in, until it lies where it is wanted, is none.
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
    """How a claim came out."""

    REPRODUCED = "reproduced"
    """The interval lies on the claimed side of the margin; of a claim on every seed: each seed does."""
    SMALLER = "smaller than claimed"
    """The interval lies on the claimed side of 0, and short of a margin above it."""
    OPPOSITE = "opposite"
    """The interval lies on the other side of the margin; of a claim on every seed: a seed does."""
    UNSEEN = "too small to see here"
    """The interval holds the margin."""
    GPU = "needs a GPU"
    """The claim says that paper scale alone decides it, and this is another."""
    MISSING = "not measured"
    """Runs are missing, or the number is not there for every seed."""


@dataclass(frozen=True)
class CheckedClaim:
    """A claim beside what was measured.

    Attributes:
        claim: the statement in words.
        verdict: how it came out.
        note: why it could not be judged, or what limits the verdict; mostly empty.
        interval: left less right, or left less the bound, seed by seed; None where no seed has both.
        differences: the same for each seed.
        of_seeds: those seeds.
        seeds: how many the study said beforehand.
        margin: of the claim, in the unit of the metric.
        looked_for: the smallest difference that matters, said beforehand; None where nobody said.
        met: on how many seeds the statement is true by itself.
        every_seed: whether the statement is about each seed.
        bound: what the left side is compared with; None where the right side is measured.
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
    """Judge a claim of a study on the rows that it came to at a scale."""
    measured = differences(claim, rows)
    found = interval_of(list(measured.values())) if measured else None
    planned = study.seeds_of(claim, scale)
    met = sum(meets(claim, difference) for difference in measured.values())
    note = ""
    if claim.decidable == "paper" and scale != "paper":
        verdict = Verdict.GPU
    elif found is None or found.seeds < planned:
        verdict, note = Verdict.MISSING, missing(claim, rows, len(measured), planned)
    elif claim.every_seed:
        verdict = Verdict.REPRODUCED if met == found.seeds else Verdict.OPPOSITE
        if verdict is Verdict.REPRODUCED:
            note = f"{found.seeds} seeds show a failing share of {failures_seen(found.seeds):.0%} or more"
    else:
        verdict = judge(claim, found)
        if found.low is None:
            note = "a single seed has no interval"
    return CheckedClaim(
        claim.claim,
        verdict,
        note,
        found,
        tuple(measured.values()),
        tuple(measured),
        planned,
        claim.margin,
        study.difference_looked_for(claim),
        met,
        claim.every_seed,
        claim.right if isinstance(claim.right, float) else None,
    )


def judge(claim: Claim, found: Interval) -> Verdict:
    """The verdict on the interval of a claim's differences."""
    if found.low is None or found.high is None:
        return Verdict.UNSEEN
    if claim.op == "within":
        if -claim.margin <= found.low and found.high <= claim.margin:
            return Verdict.REPRODUCED
        apart = found.low > claim.margin or found.high < -claim.margin
        return Verdict.OPPOSITE if apart else Verdict.UNSEEN
    # The same with the claimed side upwards.
    upwards = claim.op in (">", ">=")
    low, high = (found.low, found.high) if upwards else (-found.high, -found.low)
    margin = claim.margin if upwards else -claim.margin
    beyond = OPERATORS[">=" if "=" in claim.op else ">"]
    if beyond(low, margin):
        return Verdict.REPRODUCED
    if high < margin:
        return Verdict.SMALLER if low > 0 and not isinstance(claim.right, float) else Verdict.OPPOSITE
    return Verdict.UNSEEN


def meets(claim: Claim, difference: float) -> bool:
    """Whether the statement is true of one seed by itself."""
    if claim.op == "within":
        return abs(difference) <= claim.margin
    return OPERATORS[claim.op](difference, claim.margin)


def differences(claim: Claim, rows: Sequence[StudyRow]) -> dict[int, float]:
    """Left less right of each seed that has all numbers of both."""
    found = {quantity: by_seed(quantity, rows) for quantity in claim.quantities()}
    seeds = set.intersection(*(set(values) for values in found.values()))

    def value(side: Gap | Quantity | float, seed: int) -> float:
        if isinstance(side, Gap):
            return found[side.above][seed] - found[side.below][seed]
        return found[side][seed] if isinstance(side, Quantity) else side

    return {seed: value(claim.left, seed) - value(claim.right, seed) for seed in sorted(seeds)}


def by_seed(quantity: Quantity, rows: Sequence[StudyRow]) -> dict[int, float]:
    """A number of the table for each seed."""
    row = row_of(quantity, rows)
    return dict(zip(row.of_seeds, row.values, strict=True)) if row else {}


def row_of(quantity: Quantity, rows: Sequence[StudyRow]) -> StudyRow | None:
    """The row of the table that holds a number."""
    wanted = (quantity.row, quantity.column, quantity.metric)
    return next((row for row in rows if (row.row_key, row.column_key, row.metric) == wanted), None)


def missing(claim: Claim, rows: Sequence[StudyRow], there: int, planned: int) -> str:
    """Why a claim has fewer seeds than were planned, in words."""
    for quantity in claim.quantities():
        cell = [row for row in rows if (row.row_key, row.column_key) == (quantity.row, quantity.column)]
        run = {seed for row in cell for seed in row.of_seeds}
        row = row_of(quantity, rows)
        if row is not None and not row.of_seeds:
            return f"{quantity.metric} is one number for all seeds together"
        if len(run) >= planned and len(row.of_seeds if row else ()) < planned:
            return f"{quantity.metric} has a value on {len(row.of_seeds) if row else 0} of {len(run)} seeds"
    return f"{there} of {planned} seeds" if there else ""
