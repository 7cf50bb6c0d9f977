"""Claims of a paper, judged on the numbers that a study measured with each seed.

A claim compares two numbers of the same seed, or a number and a bound, and asks on which side of its margin the 95 %
interval of the differences lies (`shoal_research.intervals`). A claim on every seed is judged seed by seed. The study
names the number of seeds beforehand, and a claim is judged once they have run: an interval that is checked after each
added seed, until it lies on the wanted side, is no 95 % interval. Seeds that come in stages have wider intervals
(`shoal_research.sequential`). A verdict on methods needs a table in which methods work (`shoal_research.regime`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.review.results.summary import counted
from shoal_research.definition import STAGED, Claim, Gap, Quantity, Study
from shoal_research.intervals import Interval, failures_seen, interval_of
from shoal_research.judging import DECIDED, Verdict, differences, judge, meets, row_of
from shoal_research.regime import regime_of
from shoal_research.rows import StudyRow
from shoal_research.sequential import STAGES, errors_at, next_stage, sees_enough


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
        seeds: number of seeds that the study names beforehand; in stages, those of the look that settled the claim.
        margin: of the claim, in the unit of the metric.
        looked_for: smallest difference that matters, named beforehand; None where the study names none.
        met: number of seeds on which the statement is true.
        every_seed: whether the statement must hold for each seed.
        bound: the number that the left side is compared with; None where the right side is measured.
        settled: whether more seeds would change nothing, by the rule of the study.
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
    settled: bool = True


def check(study: Study, scale: str, claim: Claim, rows: Sequence[StudyRow]) -> CheckedClaim:
    """Judge a claim of a study on its rows at a scale."""
    found = check_numbers(study, scale, claim, rows)
    if found.verdict in (Verdict.NOT_RUN, Verdict.MISSING):
        return found
    regime = regime_of(study, claim, rows)
    if regime.holds:
        return found
    # More seeds may show that a control holds; of one that nothing measures they show nothing.
    return replace(found, verdict=Verdict.REGIME, note=regime.reason, settled=found.settled or not regime.measured)


def check_numbers(study: Study, scale: str, claim: Claim, rows: Sequence[StudyRow]) -> CheckedClaim:
    """Judge a claim by its own numbers, whatever the controls of the table say."""
    planned = study.seeds_of(claim, scale)
    looked_for = study.difference_looked_for(claim)
    half = half_published(study, claim)
    first = study.scales[scale].first_seed
    measured = {seed: value for seed, value in differences(claim, rows).items() if seed >= first}
    errors = None
    if isinstance(planned, int):
        seeds = planned
    else:
        measured = settling_look(claim, measured, looked_for, half, first)
        seeds = max(len(measured), STAGES[0])
        errors = errors_of_look(len(measured))
    found = interval_of(list(measured.values()), errors) if measured else None
    met = sum(meets(claim, difference) for difference in measured.values())
    checked = CheckedClaim(
        claim=claim.claim,
        verdict=Verdict.MISSING,
        note="",
        interval=found,
        differences=tuple(measured.values()),
        of_seeds=tuple(measured),
        seeds=seeds,
        margin=claim.margin,
        looked_for=looked_for,
        met=met,
        every_seed=claim.every_seed,
        bound=claim.right if isinstance(claim.right, float) else None,
    )
    if claim.decidable == "paper" and scale != "paper":
        return replace(checked, verdict=Verdict.NOT_RUN)
    if found is None or found.seeds < seeds:
        return replace(checked, note=missing(claim, rows, len(measured), seeds), settled=False)
    verdict, note = verdict_of(claim, found, met, half, looked_for)
    if planned == STAGED and not is_settled(claim, verdict, found, looked_for):
        if claim.every_seed:  # no seed has refuted it yet
            verdict = Verdict.UNDECIDED
        return replace(checked, verdict=verdict, note=f"{found.seeds} of up to {STAGES[-1]} seeds", settled=False)
    return replace(checked, verdict=verdict, note=note)


def verdict_of(
    claim: Claim, found: Interval, met: int, half: float | None, looked_for: float | None
) -> tuple[Verdict, str]:
    """Return the verdict on a claim whose seeds are there, and what limits it.

    Args:
        claim, found: the claim and the interval of its differences.
        met: number of seeds on which it is true.
        half, looked_for: as of `judge`.
    """
    if claim.every_seed:
        if met < found.seeds:
            return Verdict.OPPOSITE, ""
        share = failures_seen(found.seeds)
        return Verdict.REPRODUCED, f"{counted(found.seeds, 'seed')} would show a failing share of {share:.0%} or more"
    if found.low is None:
        return Verdict.UNDECIDED, "a single seed has no interval"
    return judge(claim, found, half, looked_for), ""


def errors_of_look(seeds: int) -> float | None:
    """Return the standard errors of the interval of a look; None before the first."""
    if seeds in STAGES:
        return errors_at(seeds)
    return None


def settling_look(
    claim: Claim, measured: dict[int, float], looked_for: float | None, half: float | None, first: int
) -> dict[int, float]:
    """Return the differences at the first look that settles a claim, or at the last one that has its seeds.

    Seeds count from the first, so that a look has the same seeds whatever else was run; fewer than three are returned
    as they are.
    """
    complete = [stage for stage in STAGES if all(seed in measured for seed in range(first, first + stage))]
    if not complete:
        return measured
    for stage in complete:
        chosen = {seed: measured[seed] for seed in range(first, first + stage)}
        found = interval_of(list(chosen.values()), errors_at(stage))
        met = sum(meets(claim, difference) for difference in chosen.values())
        verdict, _ = verdict_of(claim, found, met, half, looked_for)
        if is_settled(claim, verdict, found, looked_for):
            return chosen
    return {seed: measured[seed] for seed in range(first, first + complete[-1])}


def is_settled(claim: Claim, verdict: Verdict, found: Interval, looked_for: float | None) -> bool:
    """Return whether a look ends the stages of a claim; one on every seed ends with a seed that refutes it."""
    if next_stage(found.seeds) is None:
        return True
    if claim.every_seed:
        return verdict is Verdict.OPPOSITE
    return verdict in DECIDED or sees_enough(found, looked_for)


def published_difference(study: Study, claim: Claim) -> float | None:
    """Return the paper's left minus right, or its left where right is a bound; None where it prints no such numbers."""
    left = published_side(study, claim.left)
    right = published_side(study, claim.right)
    if left is None or right is None:
        return None
    return left - right


def published_side(study: Study, side: Gap | Quantity | float) -> float | None:
    """Return the paper's number for a side of a claim; 0 for a bound, None where the paper prints none."""
    if isinstance(side, Gap):
        above = published_side(study, side.above)
        below = published_side(study, side.below)
        if above is None or below is None:
            return None
        return above - below
    if isinstance(side, Quantity):
        return study.published(side.row, side.column, side.metric)
    return 0.0


def half_published(study: Study, claim: Claim) -> float | None:
    """Return the size of half of the paper's difference; None for a bound, or where it prints no such difference."""
    if claim.op == "within" or claim.margin or isinstance(claim.left, float) or isinstance(claim.right, float):
        return None
    printed = published_difference(study, claim)
    if printed is None or not meets(claim, printed):
        return None
    return abs(printed) / 2


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
