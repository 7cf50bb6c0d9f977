"""Imports point down the stairs, and nothing below `tasks` knows the orchestration."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sources import ROOT, packages, sources

STAIRS = ["flows", "tasks", "methods", "models", "data"]
MAY = {
    "data": {"data"},
    "models": {"models"},
    "methods": {"methods", "models", "data"},
    "tasks": {"tasks", "methods", "models", "data"},
    "flows": {"flows", "tasks", "methods", "models", "data", "studies"},
}
OUTSIDERS = {"prefect", "mlflow", "dvc", "pydantic", "typer"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", STAIRS)
def test_imports_point_down(room: str) -> None:
    files = sources(room)
    assert files
    for path in files:
        names = imported(path)
        assert names & set(STAIRS) <= MAY[room], path
        if room in ("data", "models", "methods"):
            assert not names & OUTSIDERS, path


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    for room in STAIRS:
        for path in sources(room):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            graph[name] = set()
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    graph[name] |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name in graph and name not in done:
            for below in graph[name] - {name}:
                visit(below, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_mlflow_folder_is_no_package() -> None:
    """Python would take it for the library. What models were logged with lies deeper, and is not ours."""
    assert not list((ROOT / "mlflow").glob("*.py"))


def test_every_folder_of_modules_is_a_package_that_is_installed() -> None:
    inner = [path.parent for room in STAIRS for path in (ROOT / room).glob("*/__init__.py")]
    assert {".".join(folder.relative_to(ROOT).parts) for folder in inner} <= set(packages())
