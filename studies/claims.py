"""Claims of a paper, checked on a study's rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from studies.definition import Claim, Quantity
from studies.rows import StudyRow

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim beside what was measured.

    Attributes:
        claim: the statement in words.
        holds: whether it came out true; None where a side was not measured.
        value: left less right; None where a side was not measured.
    """

    claim: str
    holds: bool | None
    value: float | None


def check(claim: Claim, rows: Sequence[StudyRow]) -> CheckedClaim:
    """A claim `left op right + margin` on the means of a study's rows."""
    left, right = mean_of(claim.left, rows), mean_of(claim.right, rows)
    if left is None or right is None:
        return CheckedClaim(claim.claim, None, None)
    return CheckedClaim(claim.claim, OPERATORS[claim.op](left, right + claim.margin), left - right)


def mean_of(side: Quantity | float, rows: Sequence[StudyRow]) -> float | None:
    """One side of a claim as a number; None where it was not measured."""
    if not isinstance(side, Quantity):
        return side
    wanted = (side.row, side.column, side.metric)
    return next((row.mean for row in rows if (row.row_key, row.column_key, row.metric) == wanted), None)
