"""Prefect's profile of a home has the login, and keeps what else stands there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shoal.serving.prefect_profile import FILE, ProfileError, keep_login
from shoal.tasks.prefect.login import CLIENT_AUTH


def test_a_new_profile_is_for_its_user_alone(tmp_path: Path) -> None:
    keep_login(tmp_path / "prefect", "me:one")
    path = tmp_path / "prefect" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    found = tomllib.loads(path.read_text())
    assert found["profiles"][found["active"]] == {CLIENT_AUTH: "me:one"}


def test_what_a_user_set_is_kept(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text('active = "mine"\n[profiles.mine]\nPREFECT_LOGGING_LEVEL = "DEBUG"\n[profiles.other]\nA = "b"\n')
    path.chmod(0o644)
    keep_login(tmp_path, "me:two")
    keep_login(tmp_path, "me:two")
    found = tomllib.loads(path.read_text())
    assert found["profiles"] == {"mine": {"PREFECT_LOGGING_LEVEL": "DEBUG", CLIENT_AUTH: "me:two"}, "other": {"A": "b"}}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("")
    (tmp_path / FILE).symlink_to(theirs)
    keep_login(tmp_path, "me:three")
    assert theirs.read_text() == ""
    assert not (tmp_path / FILE).is_symlink()


@pytest.mark.parametrize("text", ["active = [", "profiles = 3", "profiles = {ephemeral = 1}"])
def test_a_broken_profile_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ProfileError, match=FILE):
        keep_login(tmp_path, "me:four")
