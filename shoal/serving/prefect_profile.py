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
    # To these Prefect adds what its own file says of a profile of the same name.
    profiles: dict[str, Any] = {"active": "ephemeral", "profiles": {}}
    try:
        if path.exists():
            profiles |= tomllib.loads(path.read_text())
        profiles["profiles"].setdefault(profiles["active"], {})[CLIENT_AUTH] = login
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ProfileError(f"{path} does not hold profiles of Prefect ({error}): correct it, or remove it") from error
    write_atomic(path, toml.dumps(profiles).encode(), mode=0o600)
