"""The umask of a process of Shoal, and the folders of a home that other users of the machine could open."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.cli.checks import machine
from shoal.engine.settings import private_home
from shoal.engine.settings.private_home import (
    FOLDERS,
    UMASK_VARIABLE,
    close_folders,
    open_folders,
    private_files,
    project_files,
    write_privately,
)
from shoal.lifecycle.dvc_command import dvc


@pytest.fixture(autouse=True)
def umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The umask of most users, and no process above that changed it."""
    monkeypatch.setenv(UMASK_VARIABLE, "")
    monkeypatch.delenv(UMASK_VARIABLE)
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_home(home: Path) -> None:
    for name in FOLDERS:
        (home / name).mkdir(parents=True)


@pytest.mark.parametrize(
    ("user", "written"), [(0o022, 0o077), (0o002, 0o077), (0o077, 0o077), (0o027, 0o027), (0o007, 0o007)]
)
def test_a_umask_that_shuts_others_out_stays(user: int, written: int) -> None:
    """With 027 the group of a team reads."""
    os.umask(user)
    for _ in range(2):  # a process and one that it starts
        write_privately()
        assert private_home._umask() == written
        assert private_home.user_umask() == user


def test_files_of_the_project_are_as_the_user_has_them(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "ours").write_text("")
        with project_files():
            (tmp_path / "project").write_text("")
    (tmp_path / "script").write_text("")
    assert [mode(tmp_path / name) for name in ("ours", "project", "script")] == [0o600, 0o644, 0o644]


def test_open_folders_of_a_home_are_closed(home: Path) -> None:
    make_home(home)
    (home / "privacy").chmod(0o700)
    (home / "results").chmod(0o750)
    (home / "models").mkdir()
    assert close_folders(home) == ["data/store", ".dvc/cache", "runs", "mlflow"]
    assert [mode(home / name) for name in FOLDERS] == [0o700, 0o700, 0o700, 0o750, 0o700, 0o700]
    assert [mode(home / name) for name in ("data", ".dvc", "models")] == [0o755] * 3
    assert close_folders(home) == open_folders(home) == []
    (home / "runs").chmod(0o2775)
    os.umask(0o007)
    assert close_folders(home) == ["runs"]
    assert mode(home / "runs") == 0o2770


def test_folders_of_something_else_stay(home: Path) -> None:
    (home / "runs").mkdir()
    assert close_folders(home) == []
    assert mode(home / "runs") == 0o755


def test_doctor_closes_older_folders_and_says_so(home: Path) -> None:
    make_home(home)
    (check,) = [check for check in machine() if check.name == "other users"]
    assert check.ok
    assert check.detail.endswith(f"closed just now: {', '.join(FOLDERS)}")
    assert {mode(home / name) for name in FOLDERS} == {0o700}
    (check,) = [check for check in machine() if check.name == "other users"]
    assert "closed" not in check.detail


def test_doctor_names_what_it_cannot_close(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_home(home)

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", refuse)
        (check,) = [check for check in machine() if check.name == "other users"]
    assert not check.ok
    assert check.detail == f"other users of this machine can open {', '.join(FOLDERS)}"
    assert check.repair.startswith("have their owner run `chmod o-rwx data/store ")


@pytest.mark.long
def test_dvc_writes_pointers_as_the_user_has_it_and_its_cache_for_the_user_alone(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=home, check=True)
    with private_files():
        (home / "table").write_text("1")
        assert dvc(home, "add", "table").returncode == 0
    assert mode(home / "table.dvc") == 0o644
    assert mode(home / ".dvc" / "cache") == 0o700


def test_from_python_a_set_is_written_for_the_user_alone(home: Path) -> None:
    (home / "table.csv").write_text("client,a,b\n" + "".join(f"{n % 2},{n},{n * n}\n" for n in range(8)))
    added = shoal.add_data(home / "table.csv", "mine", client_column="client")
    folder = home / "data" / "store" / "own" / added.name
    assert not [path for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]
    (home / "own").write_text("")
    assert mode(home / "own") == 0o644, "the umask of the script is as it was"
