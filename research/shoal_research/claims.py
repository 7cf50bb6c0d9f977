"""Verdicts on claims by one rule.

A study names its seeds beforehand. Two cells with the same seed share partition, first weights and draws. So a claim is
judged on its differences seed by seed: Student's 95 % interval of their mean, and a two-sided t test against its
margin. The tests of a page are many, so Benjamini and Hochberg's procedure decides: of the claims of a page that are
called reproduced or refuted, 5 % are expected to be so by chance.

A claim on every seed needs no test: one seed refutes it. A claim whose control fails is out of regime, and not tested:
which of two methods is above the other says nothing where neither works.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from scipy import stats

from shoal_research.definition import EACH, Claim, Comparison, Control, Quantity, Side, Study, quantities_of
from shoal_research.table import Table
from shoal_research.words import Interval, interval_words

ERROR_RATE = 0.05
"""The rate at which intervals miss the mean, and the rate of false discoveries of a page."""
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "within": lambda difference, margin: abs(difference) <= margin,
}


class Verdict(StrEnum):
    """The verdict on a claim."""

    REPRODUCED = "reproduced"
    """The mean difference is on the claimed side of the margin; for a claim on every seed: each seed is."""
    REFUTED = "refuted"
    """It is on the other side; for a claim on every seed: a seed is."""
    UNDECIDED = "undecided"
    """So many seeds do not tell."""
    REGIME = "out of regime"
    """A control of the table fails, or nothing measures it."""
    NOT_RUN = "not run"
    """Seeds are missing."""


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict.

    Attributes:
        study, claim, scale: what is judged, and where.
        differences: left minus right, by seed.
        planned: number of seeds that the study names.
        verdict: on the claim.
        note: the control that fails; empty where none does.
        p: of the two-sided test against the margin; None where there is none.
        false_discovery: the least rate of false discoveries of the page at which the test decides.
    """

    study: Study
    claim: Claim
    scale: str
    differences: Mapping[int, float]
    planned: int
    verdict: Verdict
    note: str = ""
    p: float | None = None
    false_discovery: float | None = None

    @property
    def interval(self) -> Interval | None:
        """The interval of the differences; None for fewer than two."""
        return interval_of(list(self.differences.values()))

    @property
    def met(self) -> int:
        """The number of seeds on which the claim is true."""
        return sum(meets(self.claim, difference) for difference in self.differences.values())

    @property
    def source(self) -> str:
        """Who makes the claim: `paper`, or `ours`."""
        return self.claim.source or self.study.source


def judge(studies: Sequence[Study], table: Callable[[Study, str], Table]) -> list[JudgedClaim]:
    """Judge every claim of the studies of a page, each at the largest scale that has its seeds and is in regime.

    Args:
        studies: of the page.
        table: of a study at a scale.
    """
    tables = {(study.name, scale): table(study, scale) for study in studies for scale in study.scales}
    judged = [
        at_best_scale([measure(study, claim, scale, tables[study.name, scale]) for scale in study.judged_at(claim)])
        for study in studies
        for claim in study.claims
    ]
    tested = [one.p for one in judged if one.p is not None]
    rates = iter(stats.false_discovery_control(tested) if tested else ())
    return [one if one.p is None else decided(one, float(next(rates))) for one in judged]


def at_best_scale(at_scales: Sequence[JudgedClaim]) -> JudgedClaim:
    """Return the claim at the largest scale that was run and is in regime, else that was run, else at the first."""
    run = [one for one in at_scales if one.verdict is not Verdict.NOT_RUN]
    in_regime = [one for one in run if one.verdict is not Verdict.REGIME]
    return [*at_scales[:1], *run[-1:], *in_regime[-1:]][-1]


def decided(one: JudgedClaim, rate: float) -> JudgedClaim:
    """Return a tested claim with its verdict, given the rate of false discoveries at which its test decides."""
    if rate > ERROR_RATE:
        one = replace(one, verdict=Verdict.UNDECIDED)
    return replace(one, false_discovery=rate)


def measure(study: Study, claim: Claim, scale: str, table: Table) -> JudgedClaim:
    """Return a claim with its differences on a table; whether its test decides, the other tests of the page say."""
    seeds = study.seeds_of(claim, scale)
    measured = {seed: value for seed, value in differences(claim, table).items() if seed >= seeds.start}
    complete = all(seed in measured for seed in seeds)
    if not claim.every_seed:
        measured = {seed: measured[seed] for seed in seeds if seed in measured}
    one = JudgedClaim(study, claim, scale, measured, len(seeds), Verdict.NOT_RUN)
    refuted = claim.every_seed and one.met < len(measured)
    if not complete and not refuted:
        return one
    if reason := failing_control(study, claim, seeds.start, table):
        return replace(one, verdict=Verdict.REGIME, note=reason)
    if claim.every_seed:
        return replace(one, verdict=Verdict.REFUTED if refuted else Verdict.REPRODUCED)
    if len(measured) < 2:
        return replace(one, verdict=Verdict.UNDECIDED)
    claimed, other = tails(claim, list(measured.values()))
    verdict = Verdict.REFUTED
    if claimed < other:
        verdict = Verdict.REPRODUCED
    return replace(one, verdict=verdict, p=min(1.0, 2 * claimed, 2 * other))


def differences(compared: Comparison, table: Table) -> dict[int, float]:
    """Return left minus right for each seed that has all numbers that are compared."""
    first, *others = [table.get(quantity, {}) for quantity in compared.quantities()]
    seeds = [seed for seed in first if seed is not None and all(seed in other for other in others)]

    def at(side: Side, seed: int) -> float:
        return side_value(side, lambda quantity: table[quantity][seed])

    return {seed: at(compared.left, seed) - at(compared.right, seed) for seed in sorted(seeds)}


def side_value(side: Side, number: Callable[[Quantity], float]) -> float:
    """Return a side of a comparison, given a function to the numbers of a table."""
    if isinstance(side, float):
        return side
    value, *others = map(number, side)
    return value - sum(others)


def meets(compared: Comparison, difference: float) -> bool:
    """Return whether a comparison holds for one difference."""
    return OPERATORS[compared.op](difference, compared.margin)


def interval_of(values: Sequence[float]) -> Interval | None:
    """Return Student's 95 % interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stats.t.isf(ERROR_RATE / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def tails(compared: Comparison, values: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided p values of a comparison and of its opposite; small ones speak for them.

    `within` is tested against both ends of its margin, and its opposite against the nearer one.
    """
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    margin = compared.margin

    def p(distance: float) -> float:
        """Return the p value of a mean so far on one side of a bound."""
        if error == 0:
            return float(distance <= 0)
        return float(stats.t.sf(distance / error, len(values) - 1))

    if error == 0 and meets(compared, mean):
        return 0.0, 1.0
    above = p(mean - margin)
    below = p(margin - mean)
    if compared.op == "within":
        return max(p(mean + margin), below), min(above, p(-margin - mean))
    if compared.op in (">", ">="):
        return above, below
    return below, above


def failing_control(study: Study, claim: Claim, first_seed: int, table: Table) -> str:
    """Return the first control of a claim that does not hold, in words, by seeds from the first on; else nothing."""
    for control in study.in_regime:
        if not applies(control, claim):
            continue
        if control.left is None or control.right is None:
            return f"no row measures the control: {control.control}"
        for column in dict.fromkeys(quantity.column for quantity in claim.quantities()):
            if control.columns and column not in control.columns:
                continue
            if reason := failure(control, in_column(control, column), first_seed, table):
                return reason
    return ""


def applies(control: Control, claim: Claim) -> bool:
    """Return whether a claim needs a control: it compares what the control is about, and not with its right row."""
    compared = claim.quantities()
    floors = {quantity.row for quantity in quantities_of(control.right)}
    floors -= {quantity.row for quantity in quantities_of(control.left)}
    if any(quantity.row in floors for quantity in compared):
        return False
    needed = (control.rows, control.columns, control.metrics)
    of_claim = zip(*compared, strict=True)
    return all(not keys or not set(keys).isdisjoint(names) for keys, names in zip(needed, of_claim, strict=True))


def in_column(control: Control, column: str) -> Comparison:
    """Return what a control compares, with a column in place of `each`."""

    def placed(side: Side | None) -> Any:
        if isinstance(side, tuple):
            return [[row, column if key == EACH else key, metric] for row, key, metric in side]
        return side

    sides = {"left": placed(control.left), "right": placed(control.right)}
    return Comparison(**sides, op=control.op, margin=control.margin)


def failure(control: Control, compared: Comparison, first_seed: int, table: Table) -> str:
    """Return why a control does not hold by its own 95 % interval, in words; empty where it holds."""
    measured = [value for seed, value in differences(compared, table).items() if seed >= first_seed]
    if len(measured) < 2:
        return f"control not measured: {control.control}"
    if tails(compared, measured)[0] <= ERROR_RATE / 2:
        return ""
    interval = interval_of(measured)
    assert interval is not None
    return f"control fails: {control.control} ({interval_words(interval, bound_of(compared))})"


def bound_of(compared: Comparison) -> float | None:
    """Return the number that the left side is compared with; None where the right side is measured."""
    return compared.right if isinstance(compared.right, float) else None


def published_difference(study: Study, claim: Claim) -> float | None:
    """Return the paper's left minus right, or its left where right is a bound; None where it prints no such numbers."""
    paper = {quantity: study.published(*quantity) for quantity in claim.quantities()}
    numbers = {quantity: number for quantity, number in paper.items() if number is not None}
    if len(numbers) < len(paper):
        return None
    difference = side_value(claim.left, numbers.__getitem__) - side_value(claim.right, numbers.__getitem__)
    return difference + (bound_of(claim) or 0.0)
