"""The umask of a process of Shoal."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.engine.settings import private_home
from shoal.engine.settings.private_home import UMASK_VARIABLE, private_files, project_files, write_privately
from shoal.lifecycle.dvc_tracking import dvc


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


@pytest.mark.parametrize(
    ("user", "written"), [(0o022, 0o077), (0o002, 0o077), (0o077, 0o077), (0o027, 0o027), (0o007, 0o007)]
)
def test_a_umask_that_shuts_others_out_stays(user: int, written: int) -> None:
    """With 027 the group of a team reads."""
    os.umask(user)
    for _ in range(2):  # a process and one that it starts
        write_privately()
        assert write_privately() == written
        assert private_home.user_umask() == user


def test_files_of_the_project_are_as_the_user_has_them(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "ours").write_text("")
        with project_files():
            (tmp_path / "project").write_text("")
    (tmp_path / "script").write_text("")
    assert [mode(tmp_path / name) for name in ("ours", "project", "script")] == [0o600, 0o644, 0o644]


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
