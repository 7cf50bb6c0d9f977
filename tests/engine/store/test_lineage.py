from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shoal.engine.store.lineage import GitState, commit_page, dvc_hash, git_state, versions

DVC = str(Path(sys.executable).with_name("dvc"))


def test_hashes_are_dvcs_own(home: Path) -> None:
    folder = home / "things"
    (folder / "b").mkdir(parents=True)
    for name, text in (("z.txt", "last"), ("b/a.txt", "inner"), ("b.txt", "beside"), ("a.npy", "first")):
        (folder / name).write_text(text)
    (home / "one.bin").write_bytes(bytes(range(256)) * 9)
    subprocess.run([DVC, "init", "--no-scm", "-q"], cwd=home, check=True)
    subprocess.run([DVC, "add", "-q", "things", "one.bin"], cwd=home, check=True)
    for name in ("things", "one.bin"):
        recorded = yaml.safe_load((home / f"{name}.dvc").read_text())["outs"][0]["md5"]
        assert dvc_hash(home / name) == recorded


def test_git_state_says_commit_and_change(home: Path) -> None:
    assert git_state(home) == GitState(None, dirty=None, page=None)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    (home / "f").write_text("1")
    subprocess.run(["git", "add", "f"], cwd=home, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "one"], cwd=home, check=True)
    state = git_state(home)
    assert state.dirty is False
    assert len(state.commit) == 40
    (home / "f").write_text("2")
    assert git_state(home).dirty is True
    assert git_state(home).page is None
    subprocess.run(["git", "remote", "add", "origin", "https://me:word@host.example/a/b.git"], cwd=home, check=True)
    assert git_state(home).page == f"https://host.example/a/b/commit/{state.commit}"


def test_files_of_a_run_are_no_change_of_the_code(home: Path) -> None:
    """Otherwise a table beside the code, or `dvc repro`, makes each later run unlike all others."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    for name in ("dvc.lock", "params.yaml", "results/metrics.json", "shoal/code.py", "data/store/own/a.dvc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("1")
    subprocess.run(["git", "add", "."], cwd=home, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "one"], cwd=home, check=True)
    for name in ("dvc.lock", "params.yaml", "results/metrics.json", "found.csv", "data/store/own/a.dvc"):
        (home / name).write_text("2")
        assert git_state(home).dirty is False, name
    (home / "data/store/own/b.dvc").write_text("1")
    assert git_state(home).dirty is False
    for name in ("new.py", "shoal/study.yaml"):
        (home / name).write_text("1")
        assert git_state(home).dirty is True, name
        (home / name).unlink()
    (home / "shoal/code.py").write_text("2")
    assert git_state(home).dirty is True


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@host.example:team/sub/federation.git", "https://host.example/team/sub/federation/commit/1a"),
        ("ssh://git@host.example:2222/team/federation.git", "https://host.example/team/federation/commit/1a"),
        ("https://host.example:8443/federation/", "https://host.example:8443/federation/commit/1a"),
        ("http://token@host.example/federation", "http://host.example/federation/commit/1a"),
        ("/srv/git/federation.git", None),
        ("file:///srv/git/federation.git", None),
        ("../federation", None),
        (None, None),
    ],
)
def test_a_commit_has_a_page_where_its_repository_has_one(remote: str | None, page: str | None) -> None:
    assert commit_page(remote, "1a") == page


def test_versions_name_the_packages() -> None:
    assert versions()["torch"] != "absent"
