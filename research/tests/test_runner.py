"""Measuring the cells of studies: what is there is not measured again, and what failed has no number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_study_definition import toy

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal_research import kept, runner, simulation
from shoal_research.commands.study import show_study
from shoal_research.definition import Study, StudyError, load_study
from shoal_research.kept import MeasuredCell, MeasuredCells, Measurement, load_measured, write_cells
from shoal_research.runner import run_study
from shoal_research.simulation import simulate_cell
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
        for module in (runner, simulation):
            monkeypatch.setattr(module, "function", lambda study, path: functions[path.split(":")[1]])
        monkeypatch.setattr(simulation.os, "cpu_count", lambda: 1)  # in this process, where calls can be counted

    return use


ROWS = {
    "small": {"caption": "Small", "settings": {"size": 1}},
    "large": {"caption": "Large one", "settings": {"size": 10}},
}
CLAIM = {"claim": "large wins", "left": ["large", "all", "score"], "right": ["small", "all", "score"]}


class Computed:
    """A simulated cell, which counts how often it is computed."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
        self.calls.append((settings["size"], seed))
        (folder / "drawn.txt").write_text("a figure")
        return {"score": settings["size"] + seed, "endless": float("inf")}


def test_a_simulated_cell_is_computed_once(known: Known) -> None:
    compute = Computed()
    known(toy(simulate="toy:compute", rows=ROWS, claims=[CLAIM]), compute=compute)
    first = run_study("toy", "cpu")
    assert first.table == {
        ("small", "all", "score"): {0: 1.0, 1: 2.0, 2: 3.0},
        ("large", "all", "score"): {0: 10.0, 1: 11.0, 2: 12.0},
    }
    assert first.claims[0].verdict == "reproduced"
    assert (first.folder / "large-all-2" / "drawn.txt").exists()
    assert len(compute.calls) == 6
    assert run_study("toy", "cpu").table == first.table
    assert len(compute.calls) == 6, "what was measured is used again"
    further = run_study("toy", "cpu", 5)
    assert len(compute.calls) == 10, "of five seeds two are new"
    assert list(further.table["small", "all", "score"]) == [0, 1, 2, 3, 4]
    assert run_study("toy", "cpu", 9, gather=True).table == further.table, "what is there, and no more"


def test_cells_of_other_settings_are_no_cells_of_the_study(known: Known) -> None:
    compute = Computed()
    known(toy(simulate="toy:compute", rows=ROWS), compute=compute)
    run_study("toy", "cpu")
    changed = run_study("toy", "cpu", overrides={"size": 5, "workers": {"slots": 1}})
    assert changed.table["small", "all", "score"] == {0: 5.0, 1: 6.0, 2: 7.0}
    assert load_measured("toy", "cpu").table()["small", "all", "score"][0] == 1.0
    with pytest.raises(StudyError, match="no cell of study 'toy' at scale 'cpu' was measured: shoal study toy"):
        run_study("toy", "cpu", overrides={"size": 5}, gather=True)


def test_kept_cells_are_not_measured_again_unless_that_is_asked_for(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Computed()
    known(toy(simulate="toy:compute", rows=ROWS), compute=compute)
    old = Measurement("old", "2026-01-01", "a machine", {})
    cells = tuple(MeasuredCell("small", "all", seed, "old", {"score": 0.5}) for seed in range(3))
    write_cells(tmp_path / "results" / "toy-cpu.json", MeasuredCells("toy", "cpu", (old,), cells))
    result = run_study("toy", "cpu")
    assert [call[0] for call in compute.calls] == [10, 10, 10]
    assert set(result.table["small", "all", "score"].values()) == {0.5}
    monkeypatch.setattr(runner, "commit_of", lambda git: "new")
    monkeypatch.setattr(runner, "measurement", lambda environment, date: Measurement("new", date, "a machine", {}))
    result = run_study("toy", "cpu", again=True)
    assert len(compute.calls) == 9
    assert result.table["small", "all", "score"] == {0: 1.0, 1: 2.0, 2: 3.0}, "the newest commit counts"
    run_study("toy", "cpu", again=True)
    assert len(compute.calls) == 9, "the present commit has measured them"


def test_functions_derive_numbers_and_draw_from_all_cells(known: Known) -> None:
    seen = []

    def draw(study: Study, groups: Any, folder: Path) -> Table:
        seen.append([(group.row.key, tuple(group.metrics), group.metrics[0]["score"]) for group in groups])
        return {}

    known(toy(simulate="toy:compute", derive=["toy:draw"], rows=ROWS), compute=Computed(), draw=draw)
    run_study("toy", "cpu", rows=["small"])
    run_study("toy", "cpu", rows=["large"])
    assert seen[1] == [("small", (0, 1, 2), 1.0), ("large", (0, 1, 2), 10.0)]


def test_an_interrupted_simulation_keeps_what_it_computed(known: Known) -> None:
    compute = Computed()

    def interrupted(settings: dict[str, Any], seed: int, folder: Path) -> dict[str, float]:
        if len(compute.calls) == 4:
            raise KeyboardInterrupt
        return compute(settings, seed, folder)

    known(toy(simulate="toy:compute", rows=ROWS), compute=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study("toy", "cpu")
    assert len(load_measured("toy", "cpu").cells) == 4


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


def test_cells_are_computed_in_several_processes(home: Path) -> None:
    result = run_study("cfl-separation-probability", "cpu", 1, overrides={"trials": 3})
    study = load_study("cfl-separation-probability")
    assert len(result.table) == len(study.rows) * len(study.columns) * len(study.metrics)
    assert all(0 <= value <= 1 for values in result.table.values() for value in values.values())
    assert simulate_cell.__module__ == "shoal_research.simulation"
