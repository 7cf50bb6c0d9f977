"""Files that nobody but their user may have written or read, and the login that one of them holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core import private_file
from shoal.core.private_file import PrivateFileError, make_private, read_private
from shoal.engine.settings import places
from shoal.tasks.prefect import environment as prefect_environment
from shoal.tasks.prefect.login import CLIENT_AUTH, SERVER_AUTH, LoginError, is_local_url, known_login, own_login


@pytest.fixture(autouse=True)
def _no_login(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SERVER_AUTH, CLIENT_AUTH):
        monkeypatch.setenv(name, "")  # what a test sets is taken back
        monkeypatch.delenv(name)


def test_a_login_is_made_once_and_only_its_user_can_read_it(home: Path) -> None:
    assert known_login() is None
    login = own_login()
    assert len(login.partition(":")[2]) >= 32
    assert own_login() == known_login() == login
    assert places.login().stat().st_mode & 0o777 == 0o600
    assert places.login().parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in places.login().parent.iterdir()] == ["login"]
    places.login().unlink()
    assert own_login() != login


def test_two_that_make_a_login_at_once_have_the_same(home: Path) -> None:
    make_private(places.login(), "first:one\n")
    make_private(places.login(), "second:one\n")
    assert own_login() == "first:one"


def test_a_file_that_is_open_to_others_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "file"
    path.write_text("text")
    for mode in (0o640, 0o604, 0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(PrivateFileError, match="is open to others"):
            read_private(path)
    path.chmod(0o600)
    assert read_private(path) == "text"
    link = home / "link"
    link.symlink_to(path)
    with pytest.raises(PrivateFileError, match="is a link"):
        read_private(link)
    os.mkfifo(home / "pipe", 0o600)
    with pytest.raises(PrivateFileError, match="not a regular file"):
        read_private(home / "pipe")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PrivateFileError, match="not text"):
        read_private(path)
    path.write_bytes(b"x" * (private_file.MAX_BYTES + 1))
    with pytest.raises(PrivateFileError, match="more than"):
        read_private(path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PrivateFileError, match="belongs to another user"):
        read_private(path)


def test_a_file_that_holds_no_login_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(places.login(), "nonsense\n")
    with pytest.raises(LoginError, match="does not hold user:password"):
        own_login()
    monkeypatch.setenv(SERVER_AUTH, "me:word")
    assert own_login() == "me:word"
    monkeypatch.setenv(SERVER_AUTH, "word")
    with pytest.raises(LoginError, match="is not user:password"):
        own_login()


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", True),
        ("http://[::1]:4200/api", True),
        ("http://127.0.0.1.example.org/api", False),
        ("http://prefect.example.org/api", False),
        ("http://10.0.0.5:4200/api", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_the_password_is_given_to_this_machine_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, url: str, near: bool
) -> None:
    assert is_local_url(url) is near
    login = own_login()
    monkeypatch.setenv("PREFECT_API_URL", url)
    prefect_environment.log_in()
    assert os.environ.get(CLIENT_AUTH) == (login if near else None)


def test_what_the_user_set_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_login()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    monkeypatch.setenv(CLIENT_AUTH, "me:mine")
    prefect_environment.log_in()
    assert os.environ[CLIENT_AUTH] == "me:mine"
