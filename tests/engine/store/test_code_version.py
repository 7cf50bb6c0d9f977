"""The project's commit and state, and the Shoal that computes: from a clone, installed, and without git."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.init import make_project
from shoal.core.records import record_from_json
from shoal.engine.store.code_version import GitState, ShoalVersion, digest_of_package, project_state
from tests.sources import ROOT, copy_source

ASK = """
import json
from shoal.core.records import record_to_json
from shoal.engine.settings.places import home
from shoal.engine.store.code_version import project_state, shoal_version
print(json.dumps([record_to_json(project_state(home())), record_to_json(shoal_version())]))
"""
NOWHERE = GitState(None, dirty=None)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    """Commit a folder as it is; the commit."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "as it is")
    return git(folder, "rev-parse", "HEAD")


def install(folder: Path) -> Path:
    """Install Shoal's Python files in a folder, as a wheel does: without links, tests, or a repository."""
    shutil.copytree(
        ROOT / "shoal", folder / "shoal", ignore=shutil.ignore_patterns("store", "__pycache__"), symlinks=False
    )
    shutil.copytree(ROOT / "shoal" / "engine" / "store", folder / "shoal" / "engine" / "store")
    return folder


def ask(code: Path, home: Path, **environment: str) -> tuple[GitState, ShoalVersion]:
    """What a process says that runs the Shoal of a folder in a home."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL", "GIT"))}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=home,
        env=known | {"PYTHONPATH": str(code)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    project, shoal = json.loads(done.stdout)
    return record_from_json(GitState, project), record_from_json(ShoalVersion, shoal)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "shoal"
    copy_source(folder)
    commit(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of `shoal init` with one commit."""
    folder = tmp_path / "project"
    make_project(folder)
    commit(folder)
    return folder


def test_in_a_clone_both_are_of_the_clone(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    project, shoal = ask(clone, clone)
    assert project == shoal.git == GitState(head, dirty=False)
    assert shoal.sha256 == digest_of_package(ROOT / "shoal")
    study = clone / "shoal" / "study.yaml"
    study.write_text("1")
    assert [state.dirty for state in (ask(clone, clone)[0], ask(clone, clone)[1].git)] == [False, True]
    study.unlink()
    changed = clone / "data" / "sets" / "prepare.py"
    text = changed.read_text()
    changed.write_text(text + "\n")
    project, changed_shoal = ask(clone, clone)
    changed.write_text(text)
    assert project.dirty
    assert changed_shoal.git.dirty
    assert changed_shoal.sha256 != shoal.sha256


@pytest.mark.long
def test_in_a_project_the_commit_is_the_projects_and_not_that_of_the_clone(clone: Path, project: Path) -> None:
    """An editable install runs from its clone."""
    head = git(project, "rev-parse", "HEAD")
    said, shoal = ask(clone, project)
    assert said == GitState(head, dirty=False)
    assert shoal.git == GitState(git(clone, "rev-parse", "HEAD"), dirty=False)
    with (project / "params.yaml").open("a") as params:
        params.write("# changed\n")
    assert ask(clone, project)[0] == GitState(head, dirty=True)
    assert ask(clone, project)[1] == shoal


@pytest.mark.long
def test_installed_elsewhere_shoal_has_a_digest_and_no_commit(tmp_path: Path, project: Path) -> None:
    site = install(tmp_path / "elsewhere" / "site-packages")
    head = git(project, "rev-parse", "HEAD")
    said, shoal = ask(site, project)
    assert said == GitState(head, dirty=False)
    assert shoal.git == NOWHERE
    assert shoal.sha256 == digest_of_package(ROOT / "shoal"), "the same files as in the clone"
    (project / "mine.py").write_text("1")
    assert ask(site, project)[0] == GitState(head, dirty=True)


@pytest.mark.long
@pytest.mark.parametrize("ignored", [True, False])
def test_installed_within_a_project_shoal_does_not_have_its_commit(project: Path, ignored: bool) -> None:
    if not ignored:
        (project / ".gitignore").write_text("")
        git(project, "commit", "-qam", "nothing is ignored")
    head = git(project, "rev-parse", "HEAD")
    site = install(project / ".venv" / "lib" / "python3" / "site-packages")
    said, shoal = ask(site, project)
    assert said == GitState(head, dirty=not ignored)
    assert shoal.git == NOWHERE
    with (project / "params.yaml").open("a") as params:
        params.write("# changed\n")
    assert ask(site, project)[0] == GitState(head, dirty=True)
    assert ask(site, project)[1] == shoal


@pytest.mark.long
def test_without_git_the_digest_says_which_shoal_it_was(clone: Path, project: Path, tmp_path: Path) -> None:
    said, shoal = ask(clone, project, PATH=str(tmp_path))
    assert said == shoal.git == NOWHERE
    assert shoal.sha256 == digest_of_package(ROOT / "shoal")


@pytest.mark.long
def test_a_hook_of_another_repository_changes_nothing(project: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Git's hooks name their own repository in variables, and may start runs."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_text("1")
    commit(other)
    state = project_state(project)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert project_state(project) == state


def test_git_state_says_commit_and_change(home: Path) -> None:
    assert project_state(home) == NOWHERE
    git(home, "init", "-q")
    assert project_state(home) == NOWHERE, "without a commit"
    (home / "f").write_text("1")
    head = commit(home)
    assert project_state(home) == GitState(head, dirty=False)
    (home / "f").write_text("2")
    assert project_state(home).dirty is True


def test_what_runs_and_dvc_write_is_no_change_of_a_project(home: Path) -> None:
    """Otherwise `dvc repro` would change the project between its stages."""
    written = ("dvc.lock", "results/metrics.json", "data/store/own/a.dvc", "data/store/own/.gitignore", "vectors.dvc")
    for name in (*written, "params.yaml", "prefect.yaml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("1")
    commit(home)
    for name in (*written, "table.csv", "data/store/own/b.dvc", "mlflow/model/code/a.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("2")
        assert project_state(home).dirty is False, name
    for name in ("params.yaml", "prefect.yaml", "new.py", "below/new.py"):
        before = (home / name).read_text() if (home / name).exists() else None
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("2")
        assert project_state(home).dirty is True, name
        if before is None:
            (home / name).unlink()
        else:
            (home / name).write_text(before)
