"""Whether a table says something about methods: its controls, judged by the same intervals as claims.

A clustering that is worse than K-means on pixels, or an encoder that training makes worse than an untrained one, is out
of its regime: which of two such methods is above the other says nothing about either of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal_research.definition import EACH, Claim, Control, Gap, Quantity, Study, quantities_of
from shoal_research.intervals import interval_of
from shoal_research.judging import Verdict, differences, judge
from shoal_research.number_words import interval_words
from shoal_research.rows import StudyRow


@dataclass(frozen=True)
class Regime:
    """Whether the controls of a claim hold.

    Attributes:
        holds: whether all of them do.
        reason: the first that fails, or that nothing measures, in words; empty where all hold.
        measured: whether rows of the table measure that one.
    """

    holds: bool
    reason: str = ""
    measured: bool = True


def regime_of(study: Study, claim: Claim, rows: Sequence[StudyRow]) -> Regime:
    """Return whether the controls that a claim needs hold on the rows of a table."""
    for control in controls_of(study, claim):
        if reason := failure(control, rows):
            return Regime(False, reason, control.measured)
    return Regime(True)


def controls_of(study: Study, claim: Claim) -> list[Control]:
    """Return the controls that a claim needs, column by column."""
    return [each for control in study.in_regime if applies(control, claim) for each in in_columns(control, claim)]


def applies(control: Control, claim: Claim) -> bool:
    """Return whether a claim needs a control: it compares what the control is about, and not with its right row."""
    compared = claim.quantities()
    if control.left is not None and control.right is not None:
        judged = {quantity.row for quantity in quantities_of(control.left)}
        floors = {quantity.row for quantity in quantities_of(control.right)} - judged
        if any(quantity.row in floors for quantity in compared):
            return False
    chosen = (
        (control.rows, {quantity.row for quantity in compared}),
        (control.columns, {quantity.column for quantity in compared}),
        (control.metrics, {quantity.metric for quantity in compared}),
    )
    return all(not named or not names.isdisjoint(named) for named, names in chosen)


def in_columns(control: Control, claim: Claim) -> list[Control]:
    """Return a control once for each column of a claim that it applies to, where it is about each column."""
    if not any(quantity.column == EACH for quantity in control.quantities()):
        return [control]
    columns = dict.fromkeys(quantity.column for quantity in claim.quantities())
    return [
        control.model_copy(
            update={
                "left": in_column(control.left, column),
                "right": in_column(control.right, column),
            }
        )
        for column in columns
        if not control.columns or column in control.columns
    ]


def in_column(side: Gap | Quantity | float | None, column: str) -> Gap | Quantity | float | None:
    """Return a side of a control with a column in place of `each`."""
    if isinstance(side, Gap):
        return Gap.model_validate({"above": in_column(side.above, column), "below": in_column(side.below, column)})
    if isinstance(side, Quantity) and side.column == EACH:
        return side.model_copy(update={"column": column})
    return side


def failure(control: Control, rows: Sequence[StudyRow]) -> str:
    """Return why a control does not hold, in words; empty where it holds."""
    if not control.measured:
        return f"no row measures the control: {control.control}"
    measured = differences(control, rows)
    if not measured:
        return f"control not measured: {control.control}"
    found = interval_of(list(measured.values()))
    if judge(control, found) is Verdict.REPRODUCED:
        return ""
    bound = None
    if isinstance(control.right, float):
        bound = control.right
    return f"control fails: {control.control} ({interval_words(found, bound)})"
