"""Prefect's profile of a home: with it, Prefect's commands are logged in at the server of `shoal serve`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import toml  # type: ignore[import-untyped]  # comes with Prefect

from shoal.core.durable import private_folder
from shoal.core.errors import ShoalError
from shoal.engine.store.codec import write_atomic
from shoal.tasks.prefect.login import CLIENT_AUTH

FILE = "profiles.toml"
DEFAULT: dict[str, Any] = {
    "active": "ephemeral",
    "profiles": {"ephemeral": {"PREFECT_SERVER_EPHEMERAL_ENABLED": "true"}},
}
"""Prefect's own profiles where there is no file."""


class ProfileError(ShoalError):
    """Prefect's profiles cannot be read."""


def keep_login(folder: Path, login: str) -> None:
    """Write a login into the active profile of a folder of Prefect's; other entries are kept.

    Args:
        folder: of Prefect, made where it is missing; afterwards only its user can read it.
        login: `user:password`.

    Raises:
        ProfileError: the file does not hold profiles of Prefect. StoreError: it cannot be written.
    """
    private_folder(folder)
    path = folder / FILE
    profiles = _profiles(path)
    active = profiles["profiles"].setdefault(profiles["active"], {})
    if active.get(CLIENT_AUTH) == login and not path.is_symlink() and not path.stat().st_mode & 0o077:
        return
    active[CLIENT_AUTH] = login
    write_atomic(path, toml.dumps(profiles).encode(), mode=0o600)


def _profiles(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        found = {}
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path} cannot be read ({error}): correct it, or remove it") from error
    profiles = {**DEFAULT, **found}
    tables = profiles["profiles"]
    valid = isinstance(tables, dict) and isinstance(profiles["active"], str)
    if not valid or not all(isinstance(each, dict) for each in tables.values()):
        raise ProfileError(f"{path} does not hold profiles of Prefect: correct it, or remove it")
    return profiles
