"""Verdicts on methods in tables whose controls fail, or are missing."""

from __future__ import annotations

from typing import Any

import pytest
from test_claims import ONE, row, study

from shoal_research.claims import CheckedClaim, check
from shoal_research.definition import Study, StudyError, load_study, study_names
from shoal_research.judging import Verdict
from shoal_research.kept import RESULTS
from shoal_research.rows import StudyRow

FLOOR = {"control": "a is above d", "left": ["a", "each", "acc"], "right": ["d", "each", "acc"]}
BELOW = [9.0, 10.1, 10.9, 12.0]


def judged(control: dict[str, Any], claim: dict[str, Any] | None = None, **values: list[float]) -> CheckedClaim:
    """Return the claim `a is above b` of a table with a control."""
    toy = study(claim=claim, in_regime=[control])
    rows = [row(key, own) for key, own in {"a": ONE, "b": BELOW, **values}.items()]
    return check(toy, "cpu", toy.claims[0], rows)


def test_a_claim_is_judged_where_the_control_holds() -> None:
    assert judged(FLOOR, d=[5.0, 6.1, 6.9, 8.0]).verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("claim", [{}, {"op": "<"}, {"op": "within", "margin": 5}, {"right": 10, "every_seed": True}])
def test_no_claim_is_judged_where_the_control_fails(claim: dict[str, Any]) -> None:
    found = judged(FLOOR, claim, d=[15.0, 16.1, 16.9, 18.0])
    assert (found.verdict, found.note) == (Verdict.REGIME, "control fails: a is above d (-5.00 [-5.13, -4.87])")
    assert found.interval is not None, "the numbers are still shown"


def test_a_control_is_judged_by_its_interval() -> None:
    """On average a is above d, but on two of four seeds it is not."""
    assert judged(FLOOR, d=[8.0, 12.1, 10.5, 13.1]).verdict is Verdict.REGIME


def test_a_control_without_numbers_is_no_control() -> None:
    found = judged(FLOOR)
    assert (found.verdict, found.note) == (Verdict.REGIME, "control not measured: a is above d")
    found = judged({"control": "pooled data suffice"})
    assert (found.verdict, found.note) == (Verdict.REGIME, "no row measures the control: pooled data suffice")


def test_what_was_not_measured_stays_not_measured() -> None:
    toy = study(in_regime=[FLOOR])
    assert check(toy, "cpu", toy.claims[0], []).verdict is Verdict.MISSING
    toy = study(claim={"decidable": "paper"}, in_regime=[FLOOR])
    assert check(toy, "cpu", toy.claims[0], []).verdict is Verdict.NOT_RUN


def test_a_claim_against_the_floor_is_the_control_itself() -> None:
    found = judged(FLOOR, {"right": ["d", "x", "acc"]}, d=[15.0, 16.1, 16.9, 18.0])
    assert found.verdict is Verdict.OPPOSITE


@pytest.mark.parametrize(
    ("scope", "verdict"),
    [
        ({"rows": ["b"]}, Verdict.REGIME),
        ({"rows": ["c"]}, Verdict.REPRODUCED),
        ({"columns": ["x"]}, Verdict.REGIME),
        ({"columns": ["y"]}, Verdict.REPRODUCED),
        ({"metrics": ["acc"]}, Verdict.REGIME),
        ({"metrics": ["nmi"]}, Verdict.REPRODUCED),
    ],
)
def test_a_control_binds_the_claims_that_it_is_for(scope: dict[str, Any], verdict: Verdict) -> None:
    two = {"x": {"caption": "X"}, "y": {"caption": "Y"}}
    toy = study(columns=two, in_regime=[{**FLOOR, **scope}])
    rows = [row("a", ONE), row("b", BELOW), row("d", [15.0, 16.1, 16.9, 18.0])]
    assert check(toy, "cpu", toy.claims[0], rows).verdict is verdict


def test_each_column_has_its_own_floor() -> None:
    toy = study(columns={"x": {"caption": "X"}, "y": {"caption": "Y"}}, in_regime=[FLOOR])
    in_y = StudyRow("D", "Y", "acc", 0.0, 0.0, 4, None, "d", "y", (90.0, 91.0, 92.0, 93.0), (0, 1, 2, 3))
    rows = [row("a", ONE), row("b", BELOW), row("d", [5.0, 6.1, 6.9, 8.0]), in_y]
    assert check(toy, "cpu", toy.claims[0], rows).verdict is Verdict.REPRODUCED


@pytest.mark.parametrize(
    ("control", "sentence"),
    [
        ({"left": ["a", "x", "acc"]}, "in_regime.0: has one side; expected left and right, or neither"),
        ({"left": 1, "right": 2}, r"in_regime.0: compares two numbers; expected"),
        ({"left": ["a", "z", "acc"], "right": 1}, "in_regime.0: given 'z'; expected one of x"),
        ({"left": ["e", "x", "acc"], "right": 1}, "in_regime.0: given 'e'; expected one of a, b, c, d"),
        ({"rows": ["e"]}, "in_regime.0: given 'e'; expected one of a, b, c, d"),
    ],
)
def test_a_control_that_nothing_can_judge_is_refused(control: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError) as refused:
        study(in_regime=[{"control": "it works", **control}])
    assert f"studies/toys/toy.yaml: {sentence}" in str(refused.value)


def kept_studies() -> list[Study]:
    return [load_study(name) for name in study_names() if list(RESULTS.glob(f"{name}-*.json"))]


def test_every_kept_study_says_under_which_conditions_it_speaks_of_methods() -> None:
    for each in kept_studies():
        assert "in_regime" in each.model_fields_set, each.name
