"""Measured cells: found by row, column, seed and commit, kept in files that know no settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_study_definition import toy

from shoal.engine.settings import run_settings
from shoal.engine.store.lineage import current_environment
from shoal_research import kept, pages
from shoal_research.definition import StudyError, load_study, study_names
from shoal_research.kept import (
    MAX_IMAGE_BYTES,
    RESULTS,
    MeasuredCell,
    MeasuredCells,
    Measurement,
    commit_of,
    keep,
    load_kept,
    read_cells,
    study_folder,
    write_cells,
)
from shoal_research.label_free.tables import COUNTS, GROUPS, LIGHT, OFFSETS, RECORDED_AGAIN, TUNING
from shoal_research.server_reads.networks import FILE as NETWORKS
from shoal_research.server_reads.noise import FILE as NOISE

BY_SITE = RESULTS / "label_free_by_site.json"
POOL = RESULTS / "neighbour-pool-cpu.json"
CONTROL = RESULTS / "cfcl_control.json"
"""Kept of measurements that are over."""
SERVER_READS = RESULTS / "server_reads.json"
MAX_BYTES = 1_000_000


def measured(commit: str, date: str, score: float, seed: int | None = 0, row: str = "small") -> MeasuredCells:
    """One cell that a commit measured."""
    cell = MeasuredCell(row, "all", seed, commit, {"score": score})
    return MeasuredCells("toy", "cpu", (Measurement(commit, date, "a machine", {"torch": "2"}),), (cell,))


def test_every_kept_result_loads_and_every_claim_is_judged_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is dropped tomorrow must not lose what was measured with it today."""

    def refuse(*_: Any) -> None:
        raise AssertionError("no settings are made")

    monkeypatch.setattr(run_settings, "make_settings", refuse)
    monkeypatch.setattr(run_settings.Settings, "digest", refuse)
    files = set()
    for name in study_names():
        for scale in load_study(name).scales:
            cells = load_kept(name, scale)
            commits = {one.commit for one in cells.measured}
            assert {cell.commit for cell in cells.cells} == commits, "each cell names a commit, each commit measured"
            assert len({(*cell.place, cell.commit) for cell in cells.cells}) == len(cells.cells)
            if cells.cells:
                files.add(RESULTS / f"{name}-{scale}.json")
    assert len(load_kept("neighbour-pool", "cpu").cells) > 100, "of a study that is over"
    others = {TUNING, BY_SITE, GROUPS, OFFSETS, POOL, CONTROL, SERVER_READS, NOISE, NETWORKS, RECORDED_AGAIN, COUNTS}
    others.add(LIGHT)
    assert set(RESULTS.glob("*.json")) == files | others
    judged = [one for page in pages.PAGES for one in pages.judged_page(page)]
    claims = [(name, claim.claim) for name in study_names() for claim in load_study(name).claims]
    assert sorted((one.study.name, one.claim.claim) for one in judged) == sorted(claims)
    assert sum(bool(one.differences) for one in judged) > 400


def test_what_is_kept_is_small_and_says_nothing_of_the_machines_folders() -> None:
    for path in (*RESULTS.glob("*.json"), *(RESULTS / "rounds").iterdir()):
        assert path.stat().st_size < MAX_BYTES
    for path in RESULTS.glob("*.json"):
        assert str(Path.home()) not in path.read_text()
        assert '"/' not in path.read_text(), "an absolute path"
    for path in (kept.DOCS / "images").iterdir():
        assert path.stat().st_size <= MAX_IMAGE_BYTES, path.name


def test_of_several_commits_the_newest_counts() -> None:
    both = measured("b", "2026-02-01", 2.0).with_cells(measured("a", "2026-01-01", 1.0))
    assert [one.commit for one in both.measured] == ["a", "b"]
    assert len(both.cells) == 2, "the older number stays"
    assert both.table() == {("small", "all", "score"): {0: 2.0}}
    again = both.with_cells(measured("b", "2026-02-01", 3.0))
    assert again.table() == {("small", "all", "score"): {0: 3.0}}
    assert len(again.cells) == 2


def test_cells_are_read_as_they_were_written_a_line_each(tmp_path: Path) -> None:
    cells = measured("a", "2026-01-01", 1.0, seed=None).with_cells(measured("a", "2026-01-01", 1.5, seed=3))
    path = tmp_path / "cells.json"
    write_cells(path, cells)
    assert read_cells(path, "toy", "cpu") == cells
    assert path.read_text().count('"score"') == sum('"score"' in line for line in path.read_text().splitlines()) == 2
    assert read_cells(tmp_path / "none.json", "toy", "cpu") == MeasuredCells("toy", "cpu")
    path.write_text('{"study": "toy"}')
    with pytest.raises(StudyError, match="has no cells of a study"):
        read_cells(path, "toy", "cpu")


@pytest.fixture
def results(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders of kept results and pages."""
    monkeypatch.setattr(kept, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(kept, "DOCS", tmp_path / "docs")
    return tmp_path


def test_what_this_home_measured_is_added_to_what_is_kept(results: Path) -> None:
    study = toy(images={"seen.png": "What is seen."})
    head = commit_of(current_environment().shoal.git).removesuffix("+")
    write_cells(results / "kept" / "toy-cpu.json", measured("old", "2026-01-01", 1.0, row="large"))
    write_cells(study_folder("toy", "cpu") / "cells.json", measured(head, "2026-02-01", 2.0000000001))
    (study_folder("toy", "cpu") / "seen.png").write_bytes(b"an image")
    path = keep(study, "cpu")
    assert load_kept("toy", "cpu").table() == {
        ("large", "all", "score"): {0: 1.0},
        ("small", "all", "score"): {0: 2.0},
    }
    assert json.loads(path.read_text())["measured"][1]["commit"] == head
    image = results / "docs" / "images" / "toy-cpu-seen.png"
    assert image.read_bytes() == b"an image"
    image.write_bytes(b"an image of both rows")
    keep(study, "cpu")
    assert image.read_bytes() == b"an image of both rows"


@pytest.mark.parametrize("commit", ["unknown", "aaaaaaaaaaaa", "HEAD+"])
def test_a_result_of_code_that_nobody_can_get_is_not_kept(results: Path, commit: str) -> None:
    write_cells(study_folder("toy", "cpu") / "cells.json", measured(commit, "2026-02-01", 2.0))
    with pytest.raises(StudyError, match="which is no commit of this branch: commit the code"):
        keep(toy(), "cpu")
    assert not (results / "kept").exists()


def test_nothing_is_kept_where_nothing_was_measured(results: Path) -> None:
    with pytest.raises(StudyError, match="nothing was measured of 'toy': shoal study toy --scale paper"):
        keep(toy(), "paper")


def test_a_figure_that_is_too_large_is_not_kept(results: Path) -> None:
    head = commit_of(current_environment().shoal.git).removesuffix("+")
    write_cells(study_folder("toy", "cpu") / "cells.json", measured(head, "2026-02-01", 2.0))
    (study_folder("toy", "cpu") / "seen.png").write_bytes(bytes(MAX_IMAGE_BYTES + 1))
    with pytest.raises(StudyError, match="has 500,001 bytes; at most 500,000 are kept"):
        keep(toy(images={"seen.png": "What is seen."}), "cpu")
    assert not (results / "kept").exists()
