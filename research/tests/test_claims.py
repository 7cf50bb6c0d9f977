"""Verdicts on claims by one rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from shoal_research.claims import JudgedClaim, Verdict, interval_of, judge, published_difference
from shoal_research.definition import Study, StudyError, make_study
from shoal_research.table import Table

ONE = [10.0, 11.0, 12.0, 13.0]
"""Row a of the tests' table, seed by seed."""
BELOW = [9.0, 10.1, 10.9, 12.0]


def study(seeds: int = 4, claim: dict[str, Any] | None = None, **changes: Any) -> Study:
    """Rows a, b, c, d in one column, and one claim: a is above b."""
    given = {"claim": "a is above b", "left": ["a", "x", "acc"], "right": ["b", "x", "acc"], **(claim or {})}
    raw: dict[str, Any] = {
        "title": "a toy",
        "paper": "none",
        "metrics": ["acc"],
        "rows": {key: {"caption": key.upper()} for key in "abcd"},
        "columns": {"x": {"caption": "X"}},
        "scales": {"cpu": {"about": "a toy", "seeds": seeds}, "paper": {"about": "a large toy", "seeds": seeds}},
        "claims": [given],
    }
    return make_study({**raw, **changes}, "toys", "toy")


def table(first: int = 0, **values: Sequence[float]) -> Table:
    """Rows of these values on seeds from the first on."""
    return {(key, "x", "acc"): {first + seed: value for seed, value in enumerate(own)} for key, own in values.items()}


def judged(toy: Study, at: str = "cpu", **values: Sequence[float]) -> JudgedClaim:
    """The only claim of a study, judged on rows of these values."""
    (found,) = judge([toy], lambda _, scale: table(**values) if scale == at else {})
    return found


def test_differences_are_taken_seed_by_seed() -> None:
    """What seeds share, here a spread ten times the difference, cancels; seeds that one side lacks are left out."""
    cells: Table = {
        ("a", "x", "acc"): {4: 50.2, 1: 10.1, 3: 90.3, 2: 30.2, 9: 70.0, None: 1.0},
        ("b", "x", "acc"): {1: 10.0, 2: 30.0, 3: 90.0, 4: 50.0, 8: 0.0},
    }
    toy = study(scales={"cpu": {"about": "a toy", "seeds": 4, "first_seed": 1}})
    (found,) = judge([toy], lambda *_: cells)
    assert list(found.differences) == [1, 2, 3, 4]
    assert list(found.differences.values()) == pytest.approx([0.1, 0.2, 0.3, 0.2])
    assert found.verdict is Verdict.REPRODUCED


@pytest.mark.parametrize(
    ("claim", "right", "verdict"),
    [
        ({}, BELOW, Verdict.REPRODUCED),
        ({}, [11.0, 12.1, 12.9, 14.0], Verdict.REFUTED),
        ({}, [9.0, 12.1, 11.5, 13.0], Verdict.UNDECIDED),
        ({"op": "<"}, [11.0, 12.1, 12.9, 14.0], Verdict.REPRODUCED),
        ({"op": "<"}, BELOW, Verdict.REFUTED),
        ({"margin": 5}, BELOW, Verdict.REFUTED),
        ({"margin": -2}, [11.0, 12.1, 12.9, 14.0], Verdict.REPRODUCED),
        ({"op": "<", "margin": -5}, [11.0, 12.1, 12.9, 14.0], Verdict.REFUTED),
        ({"op": "within", "margin": 1.5}, BELOW, Verdict.REPRODUCED),
        ({"op": "within", "margin": 0.5}, BELOW, Verdict.REFUTED),
        ({"op": "within", "margin": 1.0}, BELOW, Verdict.UNDECIDED),
        ({"op": ">="}, ONE, Verdict.REPRODUCED),
        ({"op": ">"}, ONE, Verdict.UNDECIDED),
        ({"right": 8}, BELOW, Verdict.REPRODUCED),
        ({"right": 20}, BELOW, Verdict.REFUTED),
        ({"right": 11}, BELOW, Verdict.UNDECIDED),
        ({"left": 20, "right": ["a", "x", "acc"]}, BELOW, Verdict.REPRODUCED),
        ({"right": 11.5, "op": "within", "margin": 3}, BELOW, Verdict.REPRODUCED),
    ],
)
def test_the_test_decides_on_which_side_of_the_margin_it_lies(
    claim: dict[str, Any], right: list[float], verdict: Verdict
) -> None:
    assert judged(study(claim=claim), a=ONE, b=right).verdict is verdict


def test_a_difference_is_compared_with_a_difference() -> None:
    claim = {"left": [["a", "x", "acc"], ["b", "x", "acc"]], "right": [["c", "x", "acc"], ["d", "x", "acc"]]}
    cells = {"a": [5.0, 6, 7, 8], "b": [1.0, 2, 3, 4.1], "c": [3.0, 4, 5, 6], "d": [2.0, 3, 4.1, 5]}
    paper = {key: {"x": {"acc": value}} for key, value in (("a", 9.0), ("b", 1.0), ("c", 5.0), ("d", 2.0))}
    toy = study(claim=claim, paper_values=paper)
    found = judged(toy, **cells)
    assert list(found.differences.values()) == pytest.approx((3.0, 3.0, 3.1, 2.9))
    assert found.verdict is Verdict.REPRODUCED
    assert published_difference(toy, toy.claims[0]) == 5.0


def test_a_claim_on_every_seed_falls_with_one_of_them_whether_or_not_all_have_run() -> None:
    toy = study(claim={"right": 10, "op": ">=", "every_seed": True})
    assert judged(toy, a=ONE).verdict is Verdict.REPRODUCED
    one_fails = judged(toy, a=[9.99, *ONE[1:]])
    assert (one_fails.verdict, one_fails.met, one_fails.p) == (Verdict.REFUTED, 3, None)
    assert judged(toy, a=[10.0, 9.99]).verdict is Verdict.REFUTED
    assert judged(toy, a=[*ONE, 9.0]).verdict is Verdict.REFUTED, "a seed beyond the planned ones counts too"
    assert judged(toy, a=ONE[:3]).verdict is Verdict.NOT_RUN


def test_the_number_of_seeds_is_fixed() -> None:
    toy = study()
    few = judged(toy, a=ONE[:3], b=[1.0, 2.0, 3.0])
    assert (few.verdict, few.planned, few.met) == (Verdict.NOT_RUN, 4, 3)
    more = judged(toy, a=[*ONE, 0.0, 0.0], b=[*BELOW, 99.0, 99.0])
    assert (more.verdict, len(more.differences)) == (Verdict.REPRODUCED, 4), "further seeds change nothing"
    fewer = study(scales={"cpu": {"about": "", "seeds": 4, "rows": {"a": {"seeds": 2}}}})
    assert judged(fewer, a=[5.0, 6.0], b=[1.0, 2.1, 3.0, 4.0]).planned == 2
    assert judged(study(seeds=1), a=[90.0], b=[1.0]).verdict is Verdict.UNDECIDED, "one seed has no interval"


def test_the_largest_scale_that_was_run_and_is_in_regime_judges() -> None:
    cells = {"a": ONE, "b": BELOW}
    toy = study(in_regime=[{"control": "c is above 0", "left": ["c", "x", "acc"], "right": 0}])
    at = {"cpu": table(**cells, c=[1.0, 1.1, 1.2, 1.3]), "paper": table(**cells, c=[-1.0, -1.1, -1.2, -1.3])}
    (found,) = judge([toy], lambda _, scale: at[scale])
    assert (found.scale, found.verdict) == ("cpu", Verdict.REPRODUCED)
    (found,) = judge([study()], lambda _, scale: at[scale])
    assert found.scale == "paper"
    only = study(claim={"decidable": "paper"})
    assert judged(only, **cells).verdict is Verdict.NOT_RUN
    assert judged(only, at="paper", **cells).verdict is Verdict.REPRODUCED


FLOOR = {"control": "a is above d", "left": ["a", "each", "acc"], "right": ["d", "each", "acc"]}


@pytest.mark.parametrize(
    ("control", "claim", "d", "verdict"),
    [
        (FLOOR, {}, [5.0, 6.1, 6.9, 8.0], Verdict.REPRODUCED),
        (FLOOR, {}, [15.0, 16.1, 16.9, 18.0], Verdict.REGIME),
        (FLOOR, {"right": 10, "every_seed": True}, [15.0, 16.1, 16.9, 18.0], Verdict.REGIME),
        (FLOOR, {}, [8.0, 12.1, 10.5, 13.1], Verdict.REGIME),
        (FLOOR, {}, [], Verdict.REGIME),
        ({"control": "pooled data suffice"}, {}, [], Verdict.REGIME),
        (FLOOR, {"right": ["d", "x", "acc"]}, [15.0, 16.1, 16.9, 18.0], Verdict.REFUTED),
        ({**FLOOR, "rows": ["b"]}, {}, [15.0, 16.1, 16.9, 18.0], Verdict.REGIME),
        ({**FLOOR, "rows": ["c"]}, {}, [15.0, 16.1, 16.9, 18.0], Verdict.REPRODUCED),
        ({**FLOOR, "columns": ["y"]}, {}, [15.0, 16.1, 16.9, 18.0], Verdict.REPRODUCED),
        ({**FLOOR, "metrics": ["nmi"]}, {}, [15.0, 16.1, 16.9, 18.0], Verdict.REPRODUCED),
    ],
)
def test_no_claim_is_judged_where_its_control_fails(
    control: dict[str, Any], claim: dict[str, Any], d: list[float], verdict: Verdict
) -> None:
    """A claim that compares with the floor itself, or that the control is not for, is judged as it is."""
    columns = {"x": {"caption": "X"}, "y": {"caption": "Y"}}
    found = judged(study(claim=claim, columns=columns, in_regime=[control]), a=ONE, b=BELOW, d=d)
    assert found.verdict is verdict
    assert bool(found.note) == (verdict is Verdict.REGIME)
    assert found.differences, "the numbers are still shown"


def test_a_failing_control_is_named_with_its_interval() -> None:
    found = judged(study(in_regime=[FLOOR]), a=ONE, b=BELOW, d=[15.0, 16.1, 16.9, 18.0])
    assert found.note == "control fails: a is above d (-5.00 [-5.13, -4.87])"


def test_the_claims_of_a_page_are_tested_together() -> None:
    """By Benjamini and Hochberg a p of 0.04 decides alone, and not among nine claims that say nothing."""
    alone = study(claim={"left": ["a", "x", "acc"], "right": 0})
    values = np.array([-1.0, 0.0, 1.0, 2.0])
    shift = 0.04
    of_mean = np.array(ONE) - np.mean(ONE)
    mean = stats.t.isf(shift / 2, 3) * stats.sem(of_mean)
    cells = {"a": list(of_mean + mean)}
    one = judged(alone, **cells)
    assert one.p == pytest.approx(0.04)
    assert one.verdict is Verdict.REPRODUCED
    several = [alone, *(study(claim={"left": ["b", "x", "acc"], "right": 0.5}) for _ in range(9))]
    found = judge(several, lambda *_: table(**cells, b=values))
    assert found[0].false_discovery == pytest.approx(0.4)
    assert {claim.verdict for claim in found} == {Verdict.UNDECIDED}


def test_few_of_the_claims_of_a_page_without_differences_are_called() -> None:
    rng = np.random.default_rng(7)
    called = 0
    for _ in range(100):
        at = [table(a=rng.standard_normal(4), b=rng.standard_normal(4)) for _ in range(10)]
        toys = [study().model_copy(update={"name": f"toy{number}"}) for number in range(10)]
        found = judge(toys, lambda toy, scale, at=at: at[int(toy.name[3:])] if scale == "cpu" else {})
        called += any(one.verdict is not Verdict.UNDECIDED for one in found)
    assert called <= 12, "in 5 of 100 pages, and three standard errors"


def test_intervals_are_those_of_the_paired_t_test() -> None:
    left = [0.61, 0.64, 0.60, 0.66]
    right = [0.60, 0.61, 0.61, 0.62]
    found = interval_of([a - b for a, b in zip(left, right, strict=True)])
    theirs = stats.ttest_rel(left, right)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(theirs.confidence_interval(0.95))
    cells = {"a": left, "b": right}
    assert judged(study(), **cells).p == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"claim": {"left": 1, "right": 2}}, "claim 'a is above b': no scale runs all of its cells"),
        ({"claim": {"left": [["a", "x", "acc"], ["e", "x", "acc"]]}}, "no scale runs all of its cells"),
        ({"scales": {"cpu": {"about": "", "rows": {"a": {"columns": []}}}}}, "no scale runs all of its cells"),
        ({"claim": {"decidable": "gpu"}}, "claims.0.decidable"),
        ({"in_regime": [{"control": "it works", "left": ["a", "x", "acc"]}]}, "control 'it works': has one side"),
        ({"in_regime": [{"control": "it works", "rows": ["e"]}]}, "there is no row 'e'"),
        ({"in_regime": [{**FLOOR, "columns": ["z"]}]}, "there is no column 'z'"),
    ],
)
def test_what_nothing_can_judge_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError) as refused:
        study(**changes)
    assert str(refused.value).startswith("study toy: ")
    assert sentence in str(refused.value)
