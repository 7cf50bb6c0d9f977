"""Claims that differ in a case only stand in a grid; the others have a row each."""

from __future__ import annotations

from dataclasses import replace

from test_claims import ONE, row, study

from shoal_research.claims import check
from shoal_research.claims_tables import (
    ClaimCells,
    claims_tables,
    grid,
    grid_cells,
    in_order,
    regime_words,
    rows,
    seeds_words,
    verdict_words,
)
from shoal_research.judging import Verdict
from shoal_research.verdicts import Entry


def claim(case: str, words: str, seeds: str = "3") -> ClaimCells:
    return ClaimCells(case, words, "**reproduced**", "+1 [0, 2] (+3)", seeds, "1")


CLAIMS = [
    claim("IID", "A is above B"),
    claim("Dirichlet", "A is above B", "10"),
    claim("IID", "A is above C"),
    claim("", "A falls"),
    claim("IID", "alone"),
]


def test_claims_of_several_cases_are_a_grid() -> None:
    found = grid_cells(CLAIMS)
    assert [each.claim for each in found] == ["A is above B"] * 2
    assert grid(found, seeds=True, looked_for=False).splitlines() == [
        "| claim | verdict | IID | Dirichlet | seeds |",
        "|---|---|---:|---:|---:|",
        "| A is above B | **reproduced** | +1 [0, 2] (+3) | +1 [0, 2] (+3) | 3 or 10 |",
    ]


def test_verdicts_that_differ_between_cases_stand_beside_their_numbers() -> None:
    """The claim with one verdict has it in a column; one without a number has no such verdict."""
    other = replace(claim("IID", "A is above C"), verdict="**opposite**")
    cells = [*CLAIMS[:2], other, claim("Dirichlet", "A is above C")]
    assert grid(cells, seeds=False, looked_for=False).splitlines()[2:] == [
        "| A is above B | **reproduced** | +1 [0, 2] (+3) | +1 [0, 2] (+3) |",
        "| A is above C |  | **opposite**: +1 [0, 2] (+3) | **reproduced**: +1 [0, 2] (+3) |",
    ]
    assert "| claim | IID | Dirichlet |" in grid(cells[2:], seeds=False, looked_for=False)
    unmeasured = [replace(each, ours="") for each in CLAIMS[:2]]
    assert "| A is above B | **reproduced** | **reproduced** |" in grid(unmeasured, seeds=False, looked_for=False)


def test_a_grid_that_would_be_half_empty_is_none() -> None:
    cases = [claim(case, words) for case, words in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z"))]
    assert len(grid_cells(cases)) == 4, "as many places are filled as empty"
    assert grid_cells([*cases, claim("f", "z")]) == []


def test_one_claim_of_long_cases_is_no_grid() -> None:
    long = [claim("the median holds against zeros", "it is better"), claim("Krum holds against noise", "it is better")]
    assert grid_cells(long) == []
    assert grid_cells([*long, claim("IID", "it is better")]) != [], "a short head is fine"


def test_other_claims_have_a_row_with_their_case() -> None:
    assert rows(CLAIMS[3:], seeds=False, looked_for=True).splitlines()[2:] == [
        "| A falls | **reproduced** | +1 [0, 2] (+3) | 1 |",
        "| IID: alone | **reproduced** | +1 [0, 2] (+3) | 1 |",
    ]


def test_one_claim_is_a_line() -> None:
    assert rows(CLAIMS[4:], seeds=False, looked_for=False) == "- IID: alone: **reproduced**: +1 [0, 2] (+3)."
    line = "- IID: alone: **reproduced**: +1 [0, 2] (+3), 3 seeds, looks for 1."
    assert rows(CLAIMS[4:], seeds=True, looked_for=True) == line
    assert rows([replace(CLAIMS[4], verdict="not measured yet", ours="")], False, False).endswith(
        "alone: not measured yet."
    )


def test_cases_that_differ_in_a_number_are_in_its_order() -> None:
    assert in_order(["p = 0.25", "p = 10", "p = 9", "p = 0"]) == ["p = 0", "p = 0.25", "p = 9", "p = 10"]
    assert in_order(["b = 2", "a = 1"]) == ["b = 2", "a = 1"]
    assert in_order(["one", "p = 0"]) == ["one", "p = 0"]


def test_why_claims_are_out_of_regime_stands_once_above_the_table() -> None:
    toy = study(in_regime=[{"control": "training has flattened"}])
    checked = check(toy, "cpu", toy.claims[0], [row("a", ONE), row("b", [9.0, 10.1, 10.9, 12.0])])
    entry = Entry(toy, toy.claims[0], "cpu", checked, stale=False, later=False)
    shown = claims_tables([entry, replace(entry, claim=toy.claims[0].model_copy(update={"claim": "a wins"}))])
    reason = "Out of regime: no row measures the control: training has flattened.\n"
    assert shown.startswith(reason)
    assert shown.count("training has flattened") == 1
    assert "Claims, 4 seeds, all **out of regime**:\n\n| claim | ours |\n" in shown
    assert shown.count(" | +1.00 [+0.87, +1.13] |") == 2


def test_a_rule_that_was_written_after_the_run_has_a_mark_that_is_explained_once() -> None:
    toy = study()
    checked = check(toy, "cpu", toy.claims[0], [row("a", ONE), row("b", [9.0, 10.1, 10.9, 12.0])])
    late = Entry(toy, toy.claims[0], "cpu", checked, stale=False, later=True)
    shown = claims_tables([late, replace(late, later=False)])
    assert shown.startswith("† The rule was written after the run.\n\nClaims, 4 seeds:\n")
    assert shown.count("†") == 2
    assert "| **reproduced** † | +1.00" in shown
    assert "†" not in claims_tables([replace(late, later=False)])


def test_a_control_that_fails_in_several_columns_is_named_once() -> None:
    toy = study()
    checked = check(toy, "cpu", toy.claims[0], [row("a", ONE), row("b", [9.0, 10.1, 10.9, 12.0])])
    notes = ["control fails: A is above B (p < 1) (-1 [-2, 0])", "control fails: A is above B (p < 1) (0.5 [0, 1])"]
    notes.append("control not measured: C (eq. 3)")
    found = [
        Entry(toy, toy.claims[0], "cpu", replace(checked, verdict=Verdict.REGIME, note=note), stale=False, later=False)
        for note in notes
    ]
    wanted = "control fails: A is above B (p < 1) (-1 [-2, 0]; 0.5 [0, 1]); control not measured: C (eq. 3)"
    assert regime_words(found) == wanted


def test_what_a_claim_on_every_seed_sees_is_not_said() -> None:
    scales = {"cpu": {"about": "a toy", "seeds": "staged"}}
    for claim, words in (({"right": 1, "every_seed": True}, ""), ({"right": 11}, " (sees ")):
        toy = study(claim=claim, scales=scales)
        checked = check(toy, "cpu", toy.claims[0], [row("a", ONE[:3])])
        shown = verdict_words(Entry(toy, toy.claims[0], "cpu", checked, stale=False, later=False))
        assert shown.startswith(f"**undecided**{words}")
        assert seeds_words(Entry(toy, toy.claims[0], "cpu", checked, stale=False, later=False)) == "3 of up to 20"
        assert ("sees" in shown) == bool(words)
