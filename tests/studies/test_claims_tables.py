"""Claims that differ in a case only stand in a grid; the others have a row each."""

from __future__ import annotations

from shoal.studies.claims_tables import ClaimCells, grid, grid_cells, in_order, rows


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
        "| claim | IID | Dirichlet | seeds |",
        "| --- | ---: | ---: | ---: |",
        "| A is above B | **reproduced**: +1 [0, 2] (+3) | **reproduced**: +1 [0, 2] (+3) | 3 or 10 |",
    ]


def test_a_grid_that_would_be_half_empty_is_none() -> None:
    cases = [claim(case, words) for case, words in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z"))]
    assert len(grid_cells(cases)) == 4, "as many places are filled as empty"
    assert grid_cells([*cases, claim("f", "z")]) == []


def test_other_claims_have_a_row_with_their_case() -> None:
    assert rows(CLAIMS[3:], seeds=False, looked_for=True).splitlines()[2:] == [
        "| A falls | **reproduced** | +1 [0, 2] (+3) | 1 |",
        "| IID: alone | **reproduced** | +1 [0, 2] (+3) | 1 |",
    ]


def test_cases_that_differ_in_a_number_are_in_its_order() -> None:
    assert in_order(["p = 0.25", "p = 10", "p = 9", "p = 0"]) == ["p = 0", "p = 0.25", "p = 9", "p = 10"]
    assert in_order(["b = 2", "a = 1"]) == ["b = 2", "a = 1"]
    assert in_order(["one", "p = 0"]) == ["one", "p = 0"]
