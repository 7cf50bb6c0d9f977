"""Imports point down the stairs, no system knows another, no module is part of a circle: also inside functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, sources

BELOW: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "methods": {"models", "data", "core"},
    "engine": {"methods", "models", "data", "core"},
    "review": {"engine", "methods", "models", "data", "core"},
    "tasks": {"review", "engine", "methods", "models", "data", "core"},
    "search": {"tasks", "review", "engine", "methods", "models", "data", "core"},
    "flows": {"search", "tasks", "review", "engine", "methods", "models", "data", "core"},
    "studies": {"tasks", "review", "engine", "methods", "models", "data", "core"},
}
BELOW["shoal"] = BELOW["cli"] = set(BELOW)
"""What each room may import beside itself."""
SYSTEMS = {"fedpnp", "cfcl", "uifca", "cfl", "ssd"}
SHARED = {"losses", "training", "scores"}
OUTSIDERS = {"prefect", "mlflow", "dvc", "pydantic", "typer"}


def files(room: str) -> list[Path]:
    """The modules of a room, as paths from the root."""
    found = [path.relative_to(ROOT) for path in sources(room)]
    assert found, room
    return found


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function; of `from a import b` also a.b."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module(path: Path) -> str:
    """The dotted name of a file."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def test_no_flow_takes_the_place_of_a_room() -> None:
    """Prefect looks for modules in the folder of a deployment's script first: there `search` would be search.py."""
    flows = {path.relative_to("flows").parts[0].removesuffix(".py") for path in files("flows")}
    assert not flows & (BELOW.keys() | sys.stdlib_module_names)


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_down(room: str) -> None:
    for path in files(room):
        rooms = {name.split(".")[0] for name in imported(path)}
        assert rooms & BELOW.keys() <= BELOW[room] | {room}, path
        if room in ("core", "data", "models", "methods"):
            assert not rooms & OUTSIDERS, path
        if room == "engine":
            assert not rooms & {"prefect", "mlflow"}, path


def test_no_system_imports_another() -> None:
    for path in files("methods"):
        own = path.parts[1]
        others = {name.split(".")[1] for name in imported(path) if name.startswith("methods.")} & SYSTEMS
        if own in SYSTEMS:
            assert others <= {own}, path
        elif own in SHARED or own == "base.py":
            assert not others, path


def test_no_systems_studies_import_anothers() -> None:
    for path in files("studies"):
        own = path.parts[1]
        others = {name.split(".")[1] for name in imported(path) if name.startswith("studies.")} & SYSTEMS
        assert others <= ({own} if own in SYSTEMS else set()), path
        if own in SYSTEMS:
            known = {name.split(".")[1] for name in imported(path) if name.startswith("methods.")} & SYSTEMS
            assert known <= {own}, path


def test_arrows_between_the_folders_of_methods() -> None:
    arrows = set()
    for path in files("methods"):
        if len(path.parts) == 3:
            for name in imported(path):
                parts = name.split(".")
                if parts[0] == "methods" and len(parts) > 2 and parts[1] != path.parts[1]:
                    arrows.add((path.parts[1], parts[1]))
    assert len(arrows) < 60, sorted(arrows)


def test_no_module_is_part_of_a_circle() -> None:
    paths = {module(path): path for room in BELOW for path in files(room)}
    graph = {name: {found for found in imported(path) if found in paths} - {name} for name, path in paths.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for below in sorted(graph[name]):
                visit(below, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_mlflow_folder_holds_no_python_of_ours() -> None:
    """What lies there itself would shadow the package; logged models below it carry code of their own."""
    assert not list((ROOT / "mlflow").glob("*.py"))
