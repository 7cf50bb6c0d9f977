"""Measuring the cells of studies: what is there is not measured again, and what failed has no number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_study_definition import toy

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal_research import kept, runner
from shoal_research.commands.study import show_study
from shoal_research.definition import Study, StudyError, load_study
from shoal_research.kept import MeasuredCell, MeasuredCells, Measurement, load_measured, write_cells
from shoal_research.runner import run_study
from shoal_research.table import Table

Known = Callable[..., None]
SMALL: dict[str, Any] = {
    "rounds": 1,
    "tracking": {"mlflow": False},
    "data": {"name": "digits", "limit": 200},
    "local": {"epochs": 1},
    "partition": {"kind": "iid", "clients": 2},
    "model": {"encoder": "tiny-conv"},
}


@pytest.fixture
def known(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """Make a study the one that `run_study` loads, and functions those that it names; nothing is kept."""
    monkeypatch.setattr(kept, "RESULTS", tmp_path / "results")

    def use(study: Study, **functions: Any) -> None:
        monkeypatch.setattr(runner, "load_study", lambda name: study)
        monkeypatch.setattr(runner, "studies_of", lambda page: [study])
        monkeypatch.setattr(runner, "function", lambda study, path: functions[path.split(":")[1]])

    return use


KMEANS = {**SMALL, "method": "kmeans", "workers": {"slots": 1}}
ROWS = {
    "small": {"caption": "Small", "settings": {"model": {"clusters": 2}}},
    "large": {"caption": "Large one", "settings": {"model": {"clusters": 10}}},
}
CLAIM = {"claim": "large wins", "left": ["large", "all", "acc"], "right": ["small", "all", "acc"], "every_seed": True}


def clustering(**changes: Any) -> Study:
    """K-means with few and many clusters, two seeds."""
    scales = {"cpu": {"about": "a test", "seeds": 2}}
    return toy(**{"metrics": ["acc"], "settings": KMEANS, "rows": ROWS, "scales": scales, **changes})


def runs() -> list[Path]:
    """The folders of all runs in the home."""
    return sorted(places.runs().iterdir())


@pytest.mark.long
def test_a_cell_is_measured_once(known: Known) -> None:
    known(clustering(claims=[CLAIM]))
    first = run_study("toy", "cpu")
    assert first.claims[0].verdict == "reproduced"
    assert len(runs()) == 4
    assert run_study("toy", "cpu").table == first.table
    assert len(runs()) == 4, "what was measured is used again"
    further = run_study("toy", "cpu", 3, rows=["small"])
    assert len(runs()) == 5, "of three seeds one is new"
    assert list(further.table["small", "all", "acc"]) == [0, 1, 2]
    assert run_study("toy", "cpu", 9, gather=True).table == further.table, "what is there, and no more"


@pytest.mark.long
def test_cells_of_other_settings_are_no_cells_of_the_study(known: Known) -> None:
    known(clustering())
    first = run_study("toy", "cpu", 1, rows=["small"])
    other = {"model": {"clusters": 10}, "workers": {"slots": 1}}
    changed = run_study("toy", "cpu", 1, rows=["small"], overrides=other)
    assert changed.table["small", "all", "acc"][0] > first.table["small", "all", "acc"][0]
    assert load_measured("toy", "cpu").table() == first.table
    with pytest.raises(StudyError, match="no cell of study 'toy' at scale 'cpu' was measured: shoal study toy"):
        run_study("toy", "cpu", overrides={"seed": 5, "model": {"clusters": 3}}, gather=True)


@pytest.mark.long
def test_kept_cells_are_not_measured_again_unless_that_is_asked_for(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(clustering())
    old = Measurement("old", "2026-01-01", "a machine", {})
    cells = tuple(MeasuredCell("small", "all", seed, "old", {"acc": 0.5}) for seed in range(2))
    write_cells(tmp_path / "results" / "toy-cpu.json", MeasuredCells("toy", "cpu", (old,), cells))
    result = run_study("toy", "cpu")
    assert len(runs()) == 2
    assert set(result.table["small", "all", "acc"].values()) == {0.5}
    monkeypatch.setattr(runner, "commit_of", lambda git: "new")
    monkeypatch.setattr(runner, "measurement", lambda environment, date: Measurement("new", date, "a machine", {}))
    result = run_study("toy", "cpu", again=True)
    assert len(runs()) == 4
    assert max(result.table["small", "all", "acc"].values()) < 0.5, "the newest commit counts"
    run_study("toy", "cpu", again=True)
    assert len(runs()) == 4, "the present commit has measured them"


def test_a_study_that_is_over_shows_what_is_kept_and_names_the_commit_that_measures(known: Known) -> None:
    known(load_study("cfl-toy-paths"))
    with pytest.raises(StudyError, match="need earlier code: git checkout ba6372e4; shoal study cfl-toy-paths"):
        run_study("cfl-toy-paths", "cpu")


@pytest.fixture
def trained() -> Study:
    """Two methods for a round, one of them with steps that diverge."""
    return toy(
        metrics=["acc"],
        percent=True,
        settings=SMALL,
        rows={
            "wild": {"caption": "Wild steps", "settings": {"method": "fedcc", "local": {"lr": 1e38}}},
            "fedcc": {"caption": "FedCC", "settings": {"method": "fedcc"}},
        },
        derive=["toy:derive"],
        scales={"cpu": {"about": "a test", "seeds": 2}},
    )


def derive(study: Study, groups: Any, folder: Path) -> Table:
    """A number of each run."""
    return {group.place("twice"): dict.fromkeys(group.runs, 2.0) for group in groups}


def test_a_run_that_diverges_has_no_number_and_the_others_have(
    known: Known, trained: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    known(trained, derive=derive)
    result = run_study("toy", "cpu")
    assert list(result.table[("fedcc", "all", "acc")]) == [0, 1]
    assert all(1 < value <= 100 for value in result.table["fedcc", "all", "acc"].values()), "in per cent"
    assert result.table["fedcc", "all", "twice"] == {0: 2.0, 1: 2.0}
    assert not any(row == "wild" for row, _, _ in result.table)
    assert [words.split(":")[0] for words in result.failed] == ["Wild steps, All, seed 0", "Wild steps, All, seed 1"]
    assert all("NaN" in words for words in result.failed)
    show_study(result)
    shown = capsys.readouterr().out
    assert "failed, and has no number: Wild steps, All, seed 1" in shown
    runs = sorted(places.runs().iterdir())
    assert run_study("toy", "cpu", rows=["fedcc"]).table == result.table
    assert sorted(places.runs().iterdir()) == runs, "finished runs are used again"
    cells = load_measured("toy", "cpu")
    assert {cell.run for cell in cells.cells} <= {path.name for path in runs}
    assert cells.measured[0].versions["shoal"]
    known(toy(metrics=["acc"], settings=merge(SMALL, {"rounds": 2}), rows={"wild": trained.rows["wild"].model_dump()}))
    with pytest.raises(StudyError, match="round 1: 0 of 2 clients succeeded"):
        run_study("toy", "cpu", 1, overrides={"rounds": 2})


@pytest.mark.slow
def test_runs_side_by_side_are_the_same_runs(known: Known, trained: Study, capfd: pytest.CaptureFixture[str]) -> None:
    known(trained, derive=derive)
    together = run_study("toy", "cpu", overrides={"workers": {"slots": 1}}, processes=2)
    assert capfd.readouterr().out == "", "standard output is for the result"
    assert len(together.failed) == 2
    alone = run_study("toy", "cpu", rows=["fedcc"], overrides={"seed": 0, "workers": {"slots": 1}})
    assert together.table["fedcc", "all", "acc"][0] == alone.table["fedcc", "all", "acc"][0]
