"""Folders among everybody's temporary files: what another user put there first is not used."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.engine.cluster import own_gpu
from shoal.engine.store.shared_temp import SharedTempError, name_user, own_folder, user_name
from shoal.review.served import promotion
from shoal.serving.serve import exposure_warnings

NOBODY = 65534
"""Another user's number."""
IS_ROOT = os.geteuid() == 0
"""Who may give files to another user, and start processes of one."""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def open_to_all(path: Path, target: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def no_folder(path: Path, target: Path) -> None:
    path.write_text("in the way")


@pytest.mark.parametrize("plant", [link, open_to_all, no_folder])
def test_what_lies_there_is_not_trusted(temp: Path, plant: Callable[[Path, Path], None]) -> None:
    honest = own_gpu.lock_folder()
    assert honest.parent == temp
    assert stat.S_IMODE(honest.stat().st_mode) == 0o700
    honest.rmdir()
    mine = temp / "mine"
    mine.mkdir()
    (mine / "precious").write_text("mine")
    plant(honest, mine)
    with pytest.raises(SharedTempError, match=f"{honest.name} is a link or a file, .*: remove it, or set TMPDIR"):
        own_gpu.lock_folder()
    assert (mine / "precious").read_text() == "mine"


def test_a_folder_of_the_user_is_closed_to_others(temp: Path) -> None:
    path = temp / f"shoal-test-{user_name()}"
    path.mkdir(mode=0o755)
    assert own_folder("shoal-test") == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_another_users_folder_is_not_used(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = temp / f"shoal-test-{user_name()}"
    path.mkdir(mode=0o700)
    if IS_ROOT:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(SharedTempError, match="belongs to another user"):
        own_folder("shoal-test")


@pytest.mark.skipif(not IS_ROOT, reason="only root can act as two users")
def test_a_link_that_another_user_planted_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    temp = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own are closed to other users
    request.addfinalizer(lambda: shutil.rmtree(temp))
    temp.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    planted = temp / f"shoal-workers-{user_name()}"
    plant = f"import os; os.setgid({NOBODY}); os.setuid({NOBODY}); os.symlink({str(temp)!r}, {str(planted)!r})"
    subprocess.run([sys.executable, "-S", "-c", plant], check=True)
    assert planted.lstat().st_uid == NOBODY
    with pytest.raises(SharedTempError, match="is a link"):
        own_gpu.lock_folder()


def test_a_user_without_a_name_has_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers with any user; MLflow, DVC and Prefect ask for the name, and get it too."""

    def nameless(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.setenv(name, "")
    assert user_name() == promotion.user() == str(os.geteuid())
    assert exposure_warnings("0.0.0.0", 1, None)[0].endswith(f"as {os.geteuid()}")
    name_user()
    assert getpass.getuser() == str(os.geteuid())
    monkeypatch.setenv("LOGNAME", "anna")
    name_user()
    assert getpass.getuser() == "anna"
