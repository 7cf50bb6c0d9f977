"""The stages of a run: each does its own part once, wherever the run was cut short and whichever process runs it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from shoal.engine.rounds.evaluation import EvaluationStep
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle import driving, run_views
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, VIEWS, drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log import tracking
from shoal.review.mlflow_log.tracking import Tracker
from shoal.review.pages import cluster_sheets, embedding_figure, figures, report
from shoal.review.results import clusters

Make = Callable[..., Any]
PARTS: dict[str, tuple[Any, str]] = {
    "evaluation": (EvaluationStep, "answer"),
    "clusters": (clusters, "write_clusters"),
    "figures": (figures, "draw_figures"),
    "figure of features": (embedding_figure, "draw_embedding"),
    "contact sheets": (cluster_sheets, "draw_cluster_sheets"),
    "report": (report, "write_report"),
    "log": (driving, "log_run"),
    "registering": (driving, "register_model"),
}
"""What a finished run gets, and what makes it."""
DRAWN = ("figures", "figure of features", "contact sheets")
ON = {"mlflow": True}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each part of a run is made."""
    counts: Counter[str] = Counter()

    def count(part: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            counts[part] += 1
            return make(*given, **named)

        return counted

    for part, (where, name) in PARTS.items():
        monkeypatch.setattr(where, name, count(part, getattr(where, name)))
    return counts


def taken(counts: Counter[str]) -> dict[str, int]:
    """What was counted so far; the count begins again."""
    found = dict(counts)
    counts.clear()
    return found


@pytest.mark.long
def test_a_run_gets_each_part_once(home: Path, small: Make, made: Counter[str]) -> None:
    run = new_run(small(rounds=1, tracking=ON))
    result = drive(run)
    assert result.mlflow_run in (run.path / "report.html").read_text()
    assert taken(made) == dict.fromkeys(PARTS, 1)
    drive(RunFolder(run.path))
    assert taken(made) == {"report": 1, "log": 1, "registering": 1}, "MLflow itself finds nothing new"


@pytest.mark.long
def test_a_report_waits_for_a_slow_mlflow_to_name_its_run(
    home: Path, small: Make, made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = Event()
    close = Tracker.close
    first_sync = tracking.sync

    def late_sync(*given: Any, **named: Any) -> str:
        assert closing.wait(60)
        return first_sync(*given, **named)

    def closed(tracker: Tracker) -> None:
        closing.set()
        close(tracker)

    monkeypatch.setattr(tracking, "sync", late_sync)
    monkeypatch.setattr(Tracker, "close", closed)
    run = new_run(small(rounds=1, tracking=ON))
    result = drive(run)
    assert result.mlflow_run in (run.path / "report.html").read_text()
    assert taken(made) == dict.fromkeys(PARTS, 1)


@pytest.mark.long
def test_a_run_that_was_killed_between_stages_gets_what_is_missing(
    home: Path, small: Make, made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(small(rounds=1))
    drive(run, stages=(ROUNDS,))
    assert taken(made) == {"evaluation": 1}
    drive(RunFolder(run.path), stages=(CLUSTERS,))
    assert taken(made) == {"clusters": 1}
    with monkeypatch.context() as patch:

        def killed(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(report, "write_report", killed)
        with pytest.raises(KeyboardInterrupt):
            drive(RunFolder(run.path))
    assert taken(made) == dict.fromkeys(DRAWN, 1)
    drive(RunFolder(run.path))
    assert taken(made) == {"report": 1}


@pytest.mark.long
def test_views_that_are_damaged_or_out_of_date_are_made_again(
    home: Path, small: Make, made: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(small(rounds=1))
    drive(run)
    taken(made)
    (run.figures / "scores.png").write_bytes(b"damaged")
    drive(RunFolder(run.path), stages=(VIEWS,))
    assert taken(made) == {**dict.fromkeys(DRAWN, 1), "report": 1}
    run.event("night_decided", message="kept the champion: it is better")
    drive(RunFolder(run.path), stages=(VIEWS,))
    assert taken(made) == {"report": 1}
    assert "kept the champion" in (run.path / "report.html").read_text()
    shutil.rmtree(run.folder_of("data"))
    monkeypatch.setattr(run_views, "source_of_figures", lambda _: "other code")
    drive(RunFolder(run.path), stages=(VIEWS,))
    assert taken(made) == {"report": 1}, "figures that cannot be drawn again stay"


@pytest.mark.long
def test_a_report_names_the_mlflow_run_that_was_away_before(home: Path, small: Make, made: Counter[str]) -> None:
    run = new_run(small(rounds=1, tracking=ON))
    drive(run, stages=(ROUNDS, CLUSTERS))
    run.set_tracking(mlflow_run=None, mlflow_uri=None)
    taken(made)
    result = drive(RunFolder(run.path), stages=(VIEWS,))
    assert result.mlflow_run in (run.path / "report.html").read_text()
    assert taken(made) == {**dict.fromkeys(DRAWN, 1), "report": 2, "log": 2, "registering": 1}


@pytest.mark.long
def test_a_stage_that_has_nothing_to_compute_starts_no_worker(
    home: Path, small: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(small(rounds=1))
    drive(run)
    monkeypatch.setattr(driving, "open_pool", lambda *_: pytest.fail("it opened workers"))
    assert drive(RunFolder(run.path), stages=(CLUSTERS, VIEWS)).quality
