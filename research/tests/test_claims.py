"""Verdicts on claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal_research.claims import CheckedClaim, check
from shoal_research.commands.study import show_study
from shoal_research.definition import Study, StudyError, make_study
from shoal_research.intervals import visible_difference
from shoal_research.judging import Verdict
from shoal_research.result import StudyResult
from shoal_research.rows import StudyRow
from shoal_research.wording import notes, open_question, verdict_word

ONE = [10.0, 11.0, 12.0, 13.0]
"""Row a of the tests' table, seed by seed."""


def study(seeds: int = 4, claim: dict[str, Any] | None = None, **changes: Any) -> Study:
    """Rows a, b, c, d in one column, and one claim: a is above b."""
    given = {"claim": "a is above b", "left": ["a", "x", "acc"], "right": ["b", "x", "acc"], **(claim or {})}
    raw: dict[str, Any] = {
        "name": "toy",
        "title": "a toy",
        "paper": "none",
        "metrics": ["acc"],
        "rows": {key: {"caption": key.upper()} for key in "abcd"},
        "columns": {"x": {"caption": "X"}},
        "scales": {"cpu": {"about": "a toy", "seeds": seeds}, "paper": {"about": "a large toy", "seeds": seeds}},
        "claims": [given],
    }
    return make_study({**raw, **changes}, "toys", "studies/toys/toy.yaml")


def row(key: str, values: Sequence[float], seeds: Sequence[int] | None = None, metric: str = "acc") -> StudyRow:
    """A row of the table."""
    at = tuple(range(len(values))) if seeds is None else tuple(seeds)
    return StudyRow(key.upper(), "X", metric, 0.0, 0.0, len(values), None, key, "x", tuple(values), at)


def judged(claim: dict[str, Any] | None = None, scale: str = "cpu", **values: Sequence[float]) -> CheckedClaim:
    """The claim of the toy study on rows of these values."""
    toy = study(claim=claim)
    return check(toy, scale, toy.claims[0], [row(key, own) for key, own in values.items()])


def test_differences_are_taken_seed_by_seed() -> None:
    """What seeds share, here a spread ten times the difference, cancels; seeds that one side lacks are left out."""
    left = row("a", [50.2, 10.1, 90.3, 30.2, 70.0], [4, 1, 3, 2, 9])
    right = row("b", [10.0, 30.0, 90.0, 50.0, 0.0], [1, 2, 3, 4, 8])
    toy = study()
    found = check(toy, "cpu", toy.claims[0], [left, right])
    assert found.of_seeds == (1, 2, 3, 4)
    assert found.differences == pytest.approx((0.1, 0.2, 0.3, 0.2))
    assert found.verdict == Verdict.REPRODUCED
    assert found.met == 4


@pytest.mark.parametrize(
    ("claim", "right", "verdict"),
    [
        ({}, [9.0, 10.1, 10.9, 12.0], Verdict.REPRODUCED),
        ({}, [11.0, 12.1, 12.9, 14.0], Verdict.OPPOSITE),
        ({}, [9.0, 12.1, 11.5, 13.0], Verdict.UNDECIDED),
        ({"op": "<"}, [11.0, 12.1, 12.9, 14.0], Verdict.REPRODUCED),
        ({"op": "<"}, [9.0, 10.1, 10.9, 12.0], Verdict.OPPOSITE),
        ({"margin": 0.5}, [9.0, 10.1, 10.9, 12.0], Verdict.REPRODUCED),
        ({"margin": 5}, [9.0, 10.1, 10.9, 12.0], Verdict.SMALLER),
        ({"margin": 5}, [11.0, 12.1, 12.9, 14.0], Verdict.OPPOSITE),
        ({"margin": -2}, [11.0, 12.1, 12.9, 14.0], Verdict.REPRODUCED),
        ({"margin": -0.5}, [11.0, 12.1, 12.9, 14.0], Verdict.OPPOSITE),
        ({"op": "<", "margin": -5}, [11.0, 12.1, 12.9, 14.0], Verdict.SMALLER),
        ({"op": "within", "margin": 1.5}, [9.0, 10.1, 10.9, 12.0], Verdict.REPRODUCED),
        ({"op": "within", "margin": 0.5}, [9.0, 10.1, 10.9, 12.0], Verdict.OPPOSITE),
        ({"op": "within", "margin": 1.0}, [9.0, 10.1, 10.9, 12.0], Verdict.UNDECIDED),
        ({"op": ">="}, ONE, Verdict.REPRODUCED),
        ({"op": ">"}, ONE, Verdict.UNDECIDED),
    ],
)
def test_the_interval_decides_where_it_lies(claim: dict[str, Any], right: list[float], verdict: Verdict) -> None:
    assert judged(claim, a=ONE, b=right).verdict == verdict


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"right": 8}, Verdict.REPRODUCED),
        ({"right": 20}, Verdict.OPPOSITE),
        ({"right": 11}, Verdict.UNDECIDED),
        ({"left": 20, "right": ["a", "x", "acc"]}, Verdict.REPRODUCED),
        ({"right": 11.5, "op": "within", "margin": 3}, Verdict.REPRODUCED),
    ],
)
def test_a_bound_is_one_sample(claim: dict[str, Any], verdict: Verdict) -> None:
    assert judged(claim, a=ONE).verdict == verdict


@pytest.mark.parametrize(
    ("looked_for", "verdict", "words"),
    [
        (2.0, Verdict.UNSEEN, "a difference of 2 is excluded"),
        (1.4, Verdict.UNDECIDED, "sees 1.9; looks for 1.4"),
        (None, Verdict.UNDECIDED, "sees 1.9"),
    ],
)
def test_only_an_interval_that_excludes_what_matters_is_too_small(
    looked_for: float | None, verdict: Verdict, words: str
) -> None:
    """The interval is [-1.3, +1.5]: its upper end is what excludes 2 and not 1.4."""
    found = judged({"looked_for": looked_for}, a=ONE, b=[9.0, 12.1, 11.5, 13.0])
    assert (found.verdict, open_question(found)) == (verdict, words)


def test_both_directions_must_be_excluded() -> None:
    """[-1.5, +1.3] excludes 1.4 above the margin, and not 1.4 below it."""
    found = judged({"looked_for": 1.4}, a=[9.0, 12.1, 11.5, 13.0], b=ONE)
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("paper", "claim", "verdict"),
    [
        ({"a": 8.0, "b": 5.0}, {}, Verdict.SMALLER),
        ({"a": 7.0, "b": 5.0}, {}, Verdict.REPRODUCED),
        ({"a": 8.0}, {}, Verdict.REPRODUCED),
        ({"a": 5.0, "b": 8.0}, {}, Verdict.REPRODUCED),
        ({"a": 8.0, "b": 5.0}, {"margin": 0.5}, Verdict.REPRODUCED),
        ({"a": 8.0, "b": 5.0}, {"op": "<", "left": ["b", "x", "acc"], "right": ["a", "x", "acc"]}, Verdict.SMALLER),
    ],
)
def test_less_than_half_of_the_papers_difference_is_smaller(
    paper: dict[str, float], claim: dict[str, Any], verdict: Verdict
) -> None:
    """Ours is 1.00 [0.87, 1.13]: half of a difference of 3 is above it, half of one of 2 is not."""
    toy = study(claim=claim, paper_values={key: {"x": {"acc": value}} for key, value in paper.items()})
    rows = [row("a", ONE), row("b", [9.0, 10.1, 10.9, 12.0])]
    assert check(toy, "cpu", toy.claims[0], rows).verdict is verdict


def test_a_gap_is_compared_with_a_gap() -> None:
    claim = {"left": [["a", "x", "acc"], ["b", "x", "acc"]], "right": [["c", "x", "acc"], ["d", "x", "acc"]]}
    found = judged(claim, a=[5.0, 6, 7, 8], b=[1.0, 2, 3, 4.1], c=[3.0, 4, 5, 6], d=[2.0, 3, 4.1, 5])
    assert found.differences == pytest.approx((3.0, 3.0, 3.1, 2.9))
    assert found.verdict == Verdict.REPRODUCED


def test_a_claim_on_every_seed_falls_with_one_of_them() -> None:
    claim = {"right": 10, "op": ">=", "every_seed": True}
    assert judged(claim, a=ONE).verdict == Verdict.REPRODUCED
    assert "33%" in judged(claim, a=ONE).note, "1 - 0.2 ** (1 / 4)"
    one_fails = judged(claim, a=[9.99, *ONE[1:]])
    assert (one_fails.verdict, one_fails.met) == (Verdict.OPPOSITE, 3)
    assert judged({**claim, "every_seed": False}, a=[9.99, *ONE[1:]]).verdict == Verdict.UNDECIDED


def test_fewer_seeds_than_were_planned_settle_nothing() -> None:
    found = judged(a=ONE[:3], b=[1.0, 2.0, 3.0])
    assert (found.verdict, found.note, found.seeds) == (Verdict.MISSING, "3 of 4 seeds", 4)
    assert found.interval is not None
    assert judged(a=ONE).verdict == Verdict.MISSING
    toy = study(scales={"cpu": {"about": "", "seeds": 4, "rows": {"a": {"seeds": 2}}}})
    rows = [row("a", [5.0, 6.0]), row("b", [1.0, 2.1, 3.0, 4.0])]
    assert check(toy, "cpu", toy.claims[0], rows).verdict == Verdict.REPRODUCED, "the row was to have two"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([8.5], "1 of 4 planned seeds has run; the claim holds on it"),
        ([7.5], "1 of 4 planned seeds has run; the claim does not hold on it"),
        ([8.5, 7.5, 9.0], "3 of 4 planned seeds have run; the claim holds on 2 of them"),
        ([7.0, 7.5], "2 of 4 planned seeds have run; the claim holds on none of them"),
    ],
)
def test_what_some_of_the_planned_seeds_say_is_told_in_plain_words(values: list[float], words: str) -> None:
    found = judged({"claim": "a is above 8", "right": 8, "every_seed": True}, a=values)
    assert (verdict_word(found), notes(found)) == ("not decided yet", words)


def test_a_number_that_some_seeds_lack_settles_nothing() -> None:
    toy = study(claim={"left": ["a", "x", "steps"], "right": 3})
    rows = [row("a", ONE), row("a", [10.0, 11.0, 12.0], metric="steps")]
    found = check(toy, "cpu", toy.claims[0], rows)
    assert (found.verdict, found.note) == (Verdict.MISSING, "steps has a value on 3 of 4 seeds")
    together = check(toy, "cpu", toy.claims[0], [row("a", ONE), row("a", (), metric="steps")])
    assert (together.verdict, together.note) == (Verdict.MISSING, "steps is one number for all seeds together")


def test_what_paper_scale_alone_decides_is_not_judged_elsewhere() -> None:
    claim = {"decidable": "paper"}
    values = {"a": ONE, "b": [1.0, 2.0, 3.0, 4.1]}
    assert judged(claim, **values).verdict == Verdict.NOT_RUN
    assert judged(claim, "paper", **values).verdict == Verdict.REPRODUCED
    assert judged(claim, "paper").verdict == Verdict.MISSING
    assert judged({}).verdict == Verdict.MISSING, "a claim says so itself; missing runs do not"


def test_one_seed_is_no_verdict() -> None:
    toy = study(seeds=1)
    found = check(toy, "cpu", toy.claims[0], [row("a", [90.0]), row("b", [1.0])])
    assert (found.verdict, found.note) == (Verdict.UNDECIDED, "a single seed has no interval")


@pytest.mark.parametrize(("effect", "expected"), [(0.0, 0.025), (1.0, 0.8), (-1.0, 0.0)])
def test_verdicts_come_as_often_as_they_should(effect: float, expected: float) -> None:
    """Of normal pairs, in units of the visible difference: none, as much upwards, as much downwards."""
    toy = study(seeds=5)
    size = effect * visible_difference(5, 1.0)
    rng = np.random.default_rng(7)
    found = []
    for _ in range(1500):
        shared, noise = rng.standard_normal(5), rng.standard_normal((2, 5)) / np.sqrt(2)
        rows = [row("a", list(10 * shared + size + noise[0])), row("b", list(10 * shared + noise[1]))]
        found.append(check(toy, "cpu", toy.claims[0], rows).verdict)
    share = {verdict: found.count(verdict) / len(found) for verdict in Verdict}
    assert share[Verdict.REPRODUCED] == pytest.approx(expected, abs=0.031), "three standard errors, at most"
    opposite = {0.0: 0.025, 1.0: 0.0, -1.0: 0.8}[effect]
    assert share[Verdict.OPPOSITE] == pytest.approx(opposite, abs=0.031)
    assert sum(share[verdict] for verdict in (Verdict.REPRODUCED, Verdict.OPPOSITE, Verdict.UNDECIDED)) == 1


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        ({"left": 1, "right": 2}, "claims.0: compares two numbers; expected"),
        ({"op": "within"}, "claims.0: within needs a margin above 0"),
        ({"looked_for": 0}, "claims.0.looked_for: given 0; expected smallest difference that matters, above 0"),
        ({"decidable": "gpu"}, "claims.0.decidable: given 'gpu'; expected any, or paper"),
        ({"left": [["a", "x", "acc"], ["e", "x", "acc"]]}, "claims.0.left: given 'e'; expected one of a, b, c, d"),
    ],
)
def test_a_claim_that_nothing_can_judge_is_refused(claim: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError) as refused:
        study(claim=claim)
    assert f"studies/toys/toy.yaml: {sentence}" in str(refused.value)


def test_a_claim_whose_cells_no_scale_runs_is_refused() -> None:
    with pytest.raises(StudyError, match=r"claims\.0: no scale runs all of its cells"):
        study(scales={"cpu": {"about": "", "rows": {"a": "skip"}}})


def test_the_terminal_shows_verdict_interval_and_what_could_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    toy = study(looked_for={"acc": 0.5})
    claim = toy.claims[0]
    checked = check(toy, "cpu", claim, [row("a", ONE), row("b", [9.0, 10.1, 10.9, 12.0])])
    unseen = check(toy, "cpu", claim, [row("a", ONE), row("b", [9.0, 12.1, 11.5, 13.0])])
    absent = check(toy, "cpu", claim, [])
    bound = study(claim={"claim": "a is above 8", "right": 8})
    above = check(bound, "cpu", bound.claims[0], [row("a", ONE)])
    show_study(StudyResult("toy", "cpu", "", False, (), (checked, unseen, absent, above), (), ""))
    shown = " ".join(capsys.readouterr().out.split())
    assert "reproduced a is above b (+1.00 [+0.87, +1.13], true on 4 of 4 seeds)" in shown
    assert "undecided a is above b (+0.1 [-1.3, +1.5], true on 2 of 4 seeds; sees 1.9; looks for 0.5)" in shown
    assert "not measured a is above b reproduced a is above 8 (11.5 [9.4, 13.6], true on 4 of 4 seeds) tables" in shown


def test_one_seed_has_no_deviation_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (row("a", [11.5]), row("b", [9.0, 11.0]))
    show_study(StudyResult("toy", "cpu", "", False, rows, (), (), ""))
    lines = [[word.strip() for word in line.split("│")[4:6]] for line in capsys.readouterr().out.splitlines()]
    assert ["0.000", "1"] in lines
    assert ["0.000 ± 0.000", "2"] in lines
