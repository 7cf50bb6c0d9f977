"""The pages that are made from kept cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_claims import BELOW, ONE, study

from shoal_research import pages
from shoal_research.claims import judge
from shoal_research.definition import Study, StudyError, load_study, study_names
from shoal_research.kept import RESULTS, load_kept
from shoal_research.pages import claims_parts, make_pages, not_run_parts, overview, text, values_table, write_pages
from shoal_research.table import Table
from tests.sources import ROOT


def test_pages_are_what_their_data_and_texts_make() -> None:
    """After a change of a study or of kept data: `make results`."""
    made = make_pages()
    assert (ROOT / "research" / "docs" / "results.md") in made
    for path, content in made.items():
        assert path.read_text() == content, f"{path.relative_to(ROOT)} is not what `make results` makes"


def test_a_page_without_the_mark_is_refused_and_what_stands_below_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for path in (tmp_path / "results.md", *(tmp_path / "results" / f"{name}.md" for name in pages.PAGES)):
        path.write_text(f"Words on {path.stem}.\n\n{pages.MARK}\n\nA table of yesterday.\n")
    assert len(write_pages(tmp_path)) == len(pages.PAGES) + 1
    assert write_pages(tmp_path) == [], "nothing has changed"
    page = (tmp_path / "results" / "ssd.md").read_text()
    assert page.startswith(f"Words on ssd.\n\n{pages.MARK}\n\n[How to read")
    assert "yesterday" not in page
    (tmp_path / "results" / "ssd.md").write_text("Words.\n")
    with pytest.raises(StudyError, match=r"ssd\.md lacks the line '<!-- What follows"):
        text(tmp_path / "results" / "ssd.md")


def test_metrics_stand_across_where_there_are_more_of_them_than_columns() -> None:
    columns = {key: {"caption": key.upper()} for key in ("x", "y", "none")}
    paper = {"a": {"x": {"acc": 0.4}}}
    toy = study(columns=columns, shown=["acc", "nmi", "ari"], percent=False, paper_values=paper)
    cells: Table = {
        (row, column, metric): {0: 2.0, 1: 2.2 if metric == "acc" else 2.0}
        for row, column in (("a", "x"), ("b", "x"), ("a", "y"))
        for metric in ("acc", "nmi", "ari")
    }
    assert values_table(toy, "cpu", cells).splitlines() == [
        "|  | acc | nmi | ari | seeds |",
        "|---|---:|---:|---:|---:|",
        "| X: A | 2.100 ± 0.141 (0.400) | 2.000 | 2.000 | 2 |",
        "| X: B | 2.100 ± 0.141 | 2.000 | 2.000 | 2 |",
        "| Y: A | 2.100 ± 0.141 | 2.000 | 2.000 | 2 |",
    ]
    one = study(columns=columns, shown=["acc"], percent=False)
    assert values_table(one, "cpu", cells).splitlines()[0] == "|  | X | Y | seeds |", "no column without numbers"


def parts_of(toy: Study, cells: Table) -> str:
    claims = judge([toy], lambda _, scale: cells if scale == "cpu" else {})
    return "\n".join([*claims_parts(claims), *not_run_parts(claims)])


def test_claims_have_a_row_and_rules_on_every_seed_a_line() -> None:
    sides: dict[str, Any] = {"left": ["a", "x", "acc"], "right": ["b", "x", "acc"]}
    every = {"op": ">=", "right": 10.5, "every_seed": True}
    toy = study(
        paper_values={"a": {"x": {"acc": 8.0}}, "b": {"x": {"acc": 5.0}}},
        claims=[
            {"claim": "a is above b", **sides},
            {"claim": "A: it is large", "left": ["a", "x", "acc"], **every},
            {"claim": "B: it is large", "left": ["c", "x", "acc"], **every},
            {"claim": "deep", **sides, "decidable": "paper"},
        ],
    )
    cells: Table = {
        (key, "x", "acc"): dict(enumerate(own)) for key, own in (("a", ONE), ("b", BELOW), ("c", [11.0] * 4))
    }
    shown = parts_of(toy, cells)
    assert "| a is above b | reproduced | +1.00 [+0.87, +1.13] (+3) | 4 |" in shown
    assert "- On every seed: it is large: refuted (A on 3 of 4), reproduced (B on 4 of 4)." in shown
    assert "- `shoal study toy --scale paper`: deep." in shown


def test_the_overview_counts_the_claims_of_papers_and_ours_apart(tmp_path: Path) -> None:
    (tmp_path / "results.md").write_text(f"Words.\n\n{pages.MARK}\n")
    cells: Table = {(key, "x", "acc"): dict(enumerate(own)) for key, own in (("a", ONE), ("b", BELOW))}
    claims = judge([study(), study(source="ours")], lambda *_: cells)
    shown = overview({"cfl": claims}, tmp_path)
    row = "| [CFL](results/cfl.md) | 1 |  |  |  |  |"
    assert shown.split("### Claims of ours")[0].count(row) == shown.split("### Claims of ours")[1].count(row) == 1


def test_the_lines_that_the_readme_quotes_are_those_of_a_kept_run() -> None:
    words = load_kept("unseen", "cpu").newest()["scenes", "own", 0].words
    assert words is not None
    quoted = (ROOT / "README.md").read_text()
    assert f"    {words['method reason']}\n" in quoted
    assert f"    verdict: {words['verdict']}. {words['verdict reason']}\n" in quoted


def test_every_study_that_is_kept_has_a_part_on_its_page() -> None:
    for kept in map(load_study, study_names()):
        page = (ROOT / "research" / "docs" / "results" / f"{kept.page}.md").read_text()
        if any((RESULTS / f"{kept.name}-{scale}.json").exists() for scale in kept.scales):
            assert f"shoal study {kept.name} --scale" in page
