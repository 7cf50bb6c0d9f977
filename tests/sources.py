"""The project's own modules, for tests that read source.

What lies in the clone besides (runs, logged models with copies of our packages, prepared data) is not of the project:
the packages of the rooms are.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_THE_ROOT = ("data", "flows", "models", "tasks")
"""Rooms of the package whose folders lie at the root of the clone."""


def packages() -> list[str]:
    """The names of all packages, without the name that they share."""
    names = ["shoal"]
    for top in (ROOT / "shoal", *(ROOT / room for room in AT_THE_ROOT)):
        base = top if top.name == "shoal" else ROOT
        parents = (path.parent for path in top.rglob("__init__.py"))
        names += [".".join(path.relative_to(base).parts) for path in parents if path != ROOT / "shoal"]
    return sorted(name for name in names if not name.startswith("data.store"))


def rooms() -> list[str]:
    """The rooms: what lies right below the package."""
    return sorted({name.split(".")[0] for name in packages()} - {"shoal"})


def folder(package: str) -> Path:
    """Where the modules of a package lie, given its name without `shoal.`; `shoal` is the package itself."""
    if package == "shoal":
        return ROOT / "shoal"
    place = package.replace(".", "/")
    return ROOT / place if package.split(".")[0] in AT_THE_ROOT else ROOT / "shoal" / place


def sources(room: str) -> list[Path]:
    """The modules of a room: of the package of that name and of the packages in it."""
    own = [name for name in packages() if name.split(".")[0] == room]
    return sorted(path for name in own for path in folder(name).glob("*.py"))


def module(path: Path) -> str:
    """The dotted name of a file, given its path from the root of the clone."""
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    return f"shoal.{name}" if path.parts[0] in AT_THE_ROOT else name


def copy_source(target: Path) -> None:
    """Copy the clone without what was made in it."""
    anywhere = shutil.ignore_patterns(
        ".venv", ".git", ".bench", ".floor", "__pycache__", ".prefect", "*.egg-info", ".*_cache"
    )
    in_place = {ROOT: {"runs", "results", "mlflow", "shared", "build", "dist"}, ROOT / "data": {"store"}}

    def made(folder: str, names: list[str]) -> set[str]:
        return anywhere(folder, names) | (in_place.get(Path(folder), set()) & set(names))

    shutil.copytree(ROOT, target, symlinks=True, ignore=made)
