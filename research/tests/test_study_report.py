"""The page of a study's result, against the result."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal_research import report, runner, simulation
from shoal_research.definition import Study, make_study
from shoal_research.intervals import Interval
from shoal_research.judging import Verdict
from shoal_research.report import bar_of, command_of, differs_from_paper, images_of
from shoal_research.result import StudyResult
from shoal_research.runner import run_study


def toy(**changes: Any) -> Study:
    raw: dict[str, Any] = {
        "name": "toy",
        "title": "paths in the plane",
        "paper": "nobody, figure 2",
        "simulate": "simulate:toy_paths",
        "metrics": ["max_norm", "split"],
        "percent": False,
        "settings": {"steps": 200, "lr": 0.1, "eps1": 0.01, "eps2": 0.1},
        "rows": {
            "apart": {"caption": "Apart <b>", "settings": {"radius": 0.5}},
            "close": {"caption": "Close", "settings": {"radius": 1.5}},
        },
        "columns": {"two": {"caption": "two clients", "settings": {"distance": 2.0}}},
        "scales": {
            "cpu": {"about": "200 steps", "seeds": 2},
            "paper": {"about": "more", "seeds": 5, "settings": {"steps": 9000}},
        },
        "images": {"apart-two-1/paths.png": "A path that is described."},
        "paper_values": {"apart": {"two": {"max_norm": 0.4}}},
        "claims": [
            {"claim": "apart pulls", "left": ["apart", "two", "max_norm"], "right": ["close", "two", "max_norm"]},
            {"claim": "close is far", "left": ["close", "two", "max_norm"], "op": ">=", "right": 0.25},
            {"claim": "wide", "left": ["apart", "two", "split"], "right": 0, "decidable": "paper"},
        ],
    }
    return make_study({**raw, **changes}, "cfl", "studies/cfl/toy.yaml")


@pytest.fixture
def made(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Study, StudyResult, str]:
    """A study that was run, its result, and the page that the run wrote."""
    study = toy()
    monkeypatch.setattr(runner, "load_study", lambda name: study)
    monkeypatch.setattr(simulation.os, "cpu_count", lambda: 1)
    result = run_study("toy", "cpu")
    return study, result, (Path(result.folder) / "report.html").read_text()


def row(page: str, words: str) -> str:
    (found,) = (each for each in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if words in each)
    return found


def test_claims_stand_with_verdict_and_measurement(made: tuple[Study, StudyResult, str]) -> None:
    _, result, page = made
    assert [claim.verdict for claim in result.claims] == [Verdict.REPRODUCED, Verdict.OPPOSITE, Verdict.NOT_RUN]
    assert "Of 3 claims: 1 reproduced, 1 opposite, 1 not run." in page
    for claim in result.claims:
        assert f"</span>{claim.verdict}</td>" in row(page, claim.claim)
    assert "true on 2 of 2 seeds" in row(page, "apart pulls")
    assert len(re.findall(r"<i style=", page)) == sum(
        claim.interval is not None and claim.interval.low is not None and claim.interval.low != 0
        for claim in result.claims
    )


def test_ours_stands_beside_the_papers(made: tuple[Study, StudyResult, str]) -> None:
    _, result, page = made
    (ours,) = (each for each in result.rows if (each.row_key, each.metric) == ("apart", "max_norm"))
    assert ours.std < 1e-6
    assert f"{ours.mean:.3f} (0.400)" in row(page, "Apart &lt;b&gt;")
    assert "Apart <b>" not in page, "words of a study are no HTML"
    assert "values in brackets" in page


def test_it_says_what_differs_and_how_to_repeat_it(made: tuple[Study, StudyResult, str]) -> None:
    study, result, page = made
    assert differs_from_paper(study, result) == [("steps", "200", "9000"), ("seeds a cell", "2", "5")]
    assert "9000" in row(page, '<th scope="row">steps</th>')
    assert "shoal study toy --scale cpu</pre>" in page
    part = replace(result, rows=tuple(row for row in result.rows if row.row_key == "close"))
    assert command_of(study, part) == "shoal study toy --scale cpu --row close"
    one_seed = replace(result, rows=tuple(replace(row, seeds=1) for row in result.rows))
    assert command_of(study, one_seed) == "shoal study toy --scale cpu --seeds 1"
    at_paper = StudyResult(**{**result.__dict__, "scale": "paper"})
    assert differs_from_paper(study, at_paper) == []


def test_figures_are_embedded_with_what_is_seen(
    made: tuple[Study, StudyResult, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, result, page = made
    assert page.count("data:image/png") == 1
    assert "A path that is described." in page
    folder = Path(result.folder)
    (folder / "another_one.png").write_bytes(b"an image")
    found, left = images_of(study, folder)
    assert [caption for caption, _ in found] == ["A path that is described.", "another one"]
    assert left == []
    monkeypatch.setattr(report, "MAX_IMAGES_BYTES", 10)
    found, left = images_of(study, folder)
    assert (found, left) == ([], ["paths.png", "another_one.png"])


def test_a_bar_has_zero_margin_and_interval_within_it() -> None:
    def interval(low: float | None, high: float | None, mean: float) -> Interval:
        return Interval(mean=mean, low=low, high=high, seeds=3, deviation=1.0, visible=None)

    assert bar_of(interval(1.0, 3.0, 2.0), 0.0) == pytest.approx((35.0, 95.0, 65.0, 5.0))
    assert bar_of(interval(-1.0, 1.0, 0.0), 3.0) == pytest.approx((5.0, 50.0, 27.5, 95.0))
    assert bar_of(interval(None, None, 2.0), 0.0) is None
    assert bar_of(interval(0.0, 0.0, 0.0), 0.0) is None
