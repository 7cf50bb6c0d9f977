"""The page that shows runs side by side, against the runs' own tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli import compare
from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.comparison_page import best_of, write_comparison
from shoal.review.pages.report import write_report
from shoal.review.results.result import run_result
from shoal.review.results.runs import why_not_comparable
from tests.runs import straight

Make = Callable[..., Any]


@pytest.fixture
def pair(home: Path, small: Make) -> list[RunFolder]:
    first = straight(small(rounds=2))
    write_report(first)
    return [first, straight(small(rounds=3, method={"name": "fedcc"}, seed=1))]


def row(page: str, name: str) -> str:
    found = re.search(rf'<tr><th scope="row">{re.escape(name)}</th>(.*?)</tr>', page)
    assert found, name
    return found[1]


@pytest.mark.long
def test_numbers_stand_beside_each_other_and_the_best_is_marked(pair: list[RunFolder], tmp_path: Path) -> None:
    page = write_comparison(pair, tmp_path / "pages" / "both.html").read_text()
    values = [run_result(run).metrics["acc"] for run in pair]
    assert re.findall(r">([\d.]+)</td>", row(page, "ACC")) == [f"{value:.4f}" for value in values]
    best = [bool(mark) for mark in re.findall(r"<td( class=\"best\")?>[\d.]", row(page, "ACC"))]
    assert best == [value == max(values) for value in values]
    assert "best" not in row(page, "balance of cluster sizes"), "which is no measure of quality"
    assert page.count("data:image/png") >= 3
    assert f'href="{(pair[0].path / "report.html").resolve().as_uri()}"' in page
    assert pair[1].name in page, "which has no report to link to"
    assert page.count("<table") == page.count('<div class="wide"><table'), "a table that a phone cannot scroll"


@pytest.mark.long
def test_runs_on_different_partitions_have_no_best_value(home: Path, small: Make, tmp_path: Path) -> None:
    uneven = {"kind": "dirichlet", "beta": 0.5, "clients": 3, "minimum": 2}
    first, pooled = (straight(small(rounds=1, method={"name": name})) for name in ("fedpnp", "kmeans"))
    other = straight(small(rounds=1, partition=uneven))
    assert why_not_comparable([first, pooled]) is None  # kmeans pools all data
    assert why_not_comparable([pooled, other]) is None
    assert 'class="best"' in write_comparison([first, pooled], tmp_path / "two.html").read_text()
    page = write_comparison([first, pooled, other], tmp_path / "three.html").read_text()
    assert 'class="best"' not in page
    assert "No value is marked as the best: the runs divide the data in different ways" in page


@pytest.mark.long
def test_runs_on_different_data_have_no_best_value(home: Path, small: Make, tmp_path: Path) -> None:
    runs = [straight(small(rounds=1, data={"name": "digits", "limit": limit})) for limit in (200, 300)]
    page = write_comparison(runs, tmp_path / "two.html").read_text()
    assert [f"{run_result(run).metrics['acc']:.4f}" for run in runs] == re.findall(r">([\d.]+)</td>", row(page, "ACC"))
    assert 'class="best"' not in page
    assert "No value is marked as the best: the runs are on different data" in page
    assert "A star marks" not in page
    shown = CliRunner().invoke(compare.app, [str(run.path) for run in runs])
    assert "the runs are on different data: their numbers do not tell which method is better" in shown.output
    assert "different data" not in CliRunner().invoke(compare.app, [str(runs[0].path)]).output


@pytest.mark.long
def test_it_says_which_settings_differ(pair: list[RunFolder], tmp_path: Path) -> None:
    page = write_comparison(pair, tmp_path / "both.html").read_text()
    cells = re.findall(r"<td class=\"words\">(.*?)</td>", row(page, "method.name"))
    assert cells == ["fedpnp", "fedcc"]
    assert re.findall(r">(.*?)</td>", row(page, "rounds")) == ["2", "3"]
    assert "data.name" not in page


@pytest.mark.long
def test_what_cannot_be_compared_is_said(pair: list[RunFolder], tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="2 to 26 runs, not 1"):
        write_comparison(pair[:1], tmp_path / "one.html")
    with pytest.raises(ShoalError, match="named twice"):
        write_comparison([*pair, pair[0]], tmp_path / "twice.html")
    with pytest.raises(ShoalError, match="both could not be written: "):
        write_comparison(pair, Path("/proc/a/both"))
    assert not list(tmp_path.glob("*.html"))


def test_the_best_of_numbers() -> None:
    assert best_of([0.5, None, 0.7], "higher") == [False, False, True]
    assert best_of([0.5, 0.7, 0.5], "lower") == [True, False, True]
    assert best_of([0.5, 0.7], "neither") == [False, False]
    assert best_of([0.5, None], "higher") == [False, False], "of one there is no best"
    assert best_of([0.70001, 0.70002], "higher") == [False, False], "which are shown alike"
