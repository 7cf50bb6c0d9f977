"""`shoal init`: a project that needs no clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoal.cli.init import FILES, ProjectError, make_project
from tests.sources import ROOT

BIN = Path(sys.executable).parent
QUICK = {
    "rounds": 1,
    "local": {"epochs": 1},
    "data": {"name": "digits", "limit": 120},
    "tracking": {"mlflow": False, "prefect": "off"},
}


def quiet(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("DO_NOT_TRACK", "1")


def test_a_project_has_the_files_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, tmp_path)
    folder = tmp_path / "trial"
    make_project(folder)
    for name in ("params.yaml", "prefect.yaml"):
        assert (folder / name).read_text() == (ROOT / name).read_text()
    assert (folder / "stage.sh").read_text() == (ROOT / "shoal" / "cli" / "stage.sh").read_text()
    for repository in (ROOT, folder):  # the folder that nights watch has images of people, others have keys: no git
        assert {"/incoming/", "/sites/", "/site/"} <= set((repository / ".gitignore").read_text().splitlines())
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    theirs = yaml.safe_load((folder / "dvc.yaml").read_text())
    assert theirs["plots"] == ours["plots"]
    assert theirs["vars"] == ours["vars"]
    assert list(theirs["stages"]) == list(ours["stages"])
    for name, stage in theirs["stages"].items():
        own = ours["stages"][name]
        assert {key: stage[key] for key in stage if key not in ("cmd", "deps")} == {
            key: own[key] for key in own if key not in ("cmd", "deps")
        }
        made = {each for each in own["deps"] if each.startswith(("data/store", "results/"))}
        assert set(stage["deps"]) == made | {"shoal-version.txt"}
    assert (folder / ".dvc" / "config").read_text().count("analytics = false") == 1
    assert (folder / ".git").is_dir()
    with pytest.raises(ProjectError, match=r"already holds params\.yaml, .*name a new folder"):
        make_project(folder)


@pytest.mark.long
def test_a_project_below_a_repository_is_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    make_project(tmp_path / "below")
    assert not (tmp_path / "below" / ".git").exists()
    assert (tmp_path / "below" / ".dvc" / "config").exists()


@pytest.mark.long
def test_a_project_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    make_project(tmp_path / "trial")
    config = (tmp_path / "trial" / ".dvc" / "config").read_text()
    assert config.count("[core]") == 1
    assert "no_scm" in config
    assert not (tmp_path / "trial" / ".git").exists()


def test_every_file_of_a_project_is_used() -> None:
    assert {path.name for path in (ROOT / "shoal" / "cli" / "project").iterdir()} == set(FILES)


@pytest.mark.slow
def test_a_project_repeats_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, tmp_path)
    for name in ("SHOAL_HOME", "PYTHONPATH", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "trial"
    make_project(folder)
    params = {**yaml.safe_load((folder / "params.yaml").read_text()), **QUICK}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))

    def repro() -> str:
        command = [sys.executable, "-m", "dvc", "repro"]
        done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert repro().count("Running stage") == 5
    assert (folder / "results" / "report.html").is_file()
    assert "Running stage" not in repro()
    (folder / "shoal-version.txt").write_text("9\n")
    assert repro().count("Running stage") == 5


@pytest.mark.parametrize(
    ("copy", "original"),
    [("params.yaml", "params.yaml"), ("prefect.yaml", "prefect.yaml"), ("stage.sh", "shoal/cli/stage.sh")],
)
def test_files_of_a_project_are_those_of_the_clone(copy: str, original: str) -> None:
    """They are copies: an archive without links holds them too."""
    file = ROOT / "shoal" / "cli" / "project" / copy
    assert not file.is_symlink()
    assert file.read_bytes() == (ROOT / original).read_bytes()
