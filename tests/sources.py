"""The project's own modules, for tests that read source.

What lies in the clone besides (runs, logged models with copies of our packages, prepared data) is not of the project:
the packages that pyproject.toml names are.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def packages() -> list[str]:
    """The names of all packages."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]


def sources(room: str) -> list[Path]:
    """The modules of a room: of the package of that name and of the packages in it."""
    own = [name for name in packages() if name.split(".")[0] == room]
    return sorted(path for name in own for path in (ROOT / name.replace(".", "/")).glob("*.py"))
