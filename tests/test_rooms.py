"""Imports point down the stairs, no system knows another, no module is part of a circle: also inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import AT_THE_ROOT, ROOT, module, rooms, sources

BELOW: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "methods": {"models", "data", "core"},
    "engine": {"methods", "models", "data", "core"},
    "review": {"engine", "methods", "models", "data", "core"},
    "lifecycle": {"review", "engine", "methods", "models", "data", "core"},
    "sweeps": {"lifecycle", "review", "engine", "methods", "models", "data", "core"},
    "tasks": {"sweeps", "lifecycle", "review", "engine", "methods", "models", "data", "core"},
    "serving": {"tasks", "review", "engine", "data", "core"},
    "flows": {"tasks", "sweeps", "lifecycle", "review", "engine", "methods", "models", "data", "core"},
}
BELOW["api"] = set(BELOW)
BELOW["cli"] = set(BELOW)
"""What each room may import beside itself."""
STAIRS = {
    "data": ("sets", "partition", "views", "intake"),
    "engine": ("settings", "store", "messages", "workers", "cluster", "rounds", "sites"),
    "review": ("results", "mlflow_log", "pages", "served"),
}
"""The rooms inside a room, each of which may import those before it."""
MOST_ARROWS = {"data": 4, "engine": 20, "review": 12}
"""Pairs of rooms inside a room of which one imports the other."""
SYSTEMS = {"fedpnp", "cfcl", "uifca", "cfl", "ssd", "features"}
SHARED = {"contract", "averaging", "clustering", "losses", "training", "scores"}
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


def rooms_of(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("shoal.")} & BELOW.keys()


def inner(name: str, room: str) -> str | None:
    """The room inside a room that a module belongs to; None where it is in none."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["shoal", room] and len(parts) > 3 else None


def test_every_room_has_its_place_in_the_stairs() -> None:
    assert set(rooms()) == BELOW.keys()


def test_every_folder_with_modules_is_a_package() -> None:
    tops = [ROOT / "shoal", *(ROOT / room for room in AT_THE_ROOT)]
    folders = {
        path.parent for top in tops for path in top.rglob("*.py") if "store" not in path.relative_to(ROOT).parts[:2]
    }
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_the_product_imports_nothing_of_research() -> None:
    for room in BELOW:
        for path in files(room):
            assert not [name for name in imported(path) if name.startswith("shoal_research")], path


def test_no_flow_takes_the_place_of_a_room() -> None:
    """Prefect looks for modules in the folder of a deployment's script first: there `search` would be search.py."""
    flows = {path.relative_to("flows").parts[0].removesuffix(".py") for path in files("flows")}
    assert not flows & (BELOW.keys() | sys.stdlib_module_names)


@pytest.mark.long
@pytest.mark.parametrize("room", BELOW)
def test_imports_point_down(room: str) -> None:
    for path in files(room):
        assert rooms_of(path) <= BELOW[room] | {room}, path
        others = {name.split(".")[0] for name in imported(path)}
        if room in ("core", "data", "models", "methods"):
            assert not others & OUTSIDERS, path
        if room == "engine":
            assert not others & {"prefect", "mlflow"}, path


@pytest.mark.parametrize("room", STAIRS)
def test_imports_point_down_inside_a_room(room: str) -> None:
    stairs = STAIRS[room]
    arrows = set()
    for path in files(room):
        own = inner(module(path), room)
        if path.name == "__init__.py":
            continue
        assert own in stairs, path
        for name in imported(path):
            other = inner(name, room)
            if other in stairs and other != own:
                assert stairs.index(other) < stairs.index(own), (path, name)
                arrows.add((own, other))
    assert len(arrows) <= MOST_ARROWS[room], sorted(arrows)


def test_no_system_imports_another() -> None:
    for path in files("methods"):
        own = path.parts[2]
        others = {name.split(".")[2] for name in imported(path) if name.startswith("shoal.methods.")} & SYSTEMS
        if own in SYSTEMS:
            assert others <= {own}, path
        elif own in SHARED:
            assert not others, path


def test_no_circle_between_the_folders_of_methods() -> None:
    arrows = set()
    for path in files("methods"):
        own = inner(module(path), "methods")
        for name in imported(path):
            other = inner(name, "methods") if own else None
            if other and other != own and other in SHARED | SYSTEMS:
                arrows.add((own, other))
    assert len(arrows) < 60, sorted(arrows)
    while arrows:  # take away what imports nothing that is left
        lowest = {other for _, other in arrows} - {own for own, _ in arrows}
        assert lowest, sorted(arrows)
        arrows = {(own, other) for own, other in arrows if other not in lowest}


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


def test_rooms_at_the_root_are_links_in_the_package() -> None:
    for room in AT_THE_ROOT:
        link = ROOT / "shoal" / room
        assert link.is_symlink(), room
        assert link.readlink() == Path("..") / room


@pytest.mark.parametrize("room", AT_THE_ROOT)
def test_no_module_has_two_names(room: str) -> None:
    """From the root of the clone `import data` finds the folder of `shoal.data`, whose modules would exist twice."""
    code = f"import shoal.{room}, sys; assert '{room}' not in sys.modules; import {room}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert f"this folder is the package shoal.{room}: import it by that name" in done.stderr


def test_mlflow_folder_holds_no_python_of_ours() -> None:
    """What lies there itself would shadow the package; logged models below it carry code of their own."""
    assert not list((ROOT / "mlflow").glob("*.py"))


def test_every_file_of_tests_has_a_name_of_its_own() -> None:
    names = [path.name for folder in ("tests", "research/tests") for path in (ROOT / folder).rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest imports both by one name"
