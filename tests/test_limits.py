"""Limits of the code: short functions, a statement for each value, few conditional expressions; ruff has the others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.sources import ROOT, rooms, sources

MAX_FUNCTION_LINES = 60
MAX_PACKED_SHARE = 0.01
"""Of all assignments of the product."""
MAX_CONDITIONALS_PER_1000_LINES = 10


def product() -> list[Path]:
    """The modules of the package."""
    return [path for room in rooms() for path in sources(room)]


def nodes(paths: Iterable[Path]) -> Iterator[ast.AST]:
    """Every node of the syntax trees of modules."""
    for path in paths:
        yield from ast.walk(ast.parse(path.read_text()))


def long_functions(source: str) -> list[str]:
    """The functions of a module that have too many lines, from `def` to their end: `name: lines`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                found.append(f"{node.name}: {lines}")
    return found


def is_packed(node: ast.AST) -> bool:
    """Whether a statement assigns the values of a tuple to the targets of another; a swap is not packed."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    values = sorted(ast.unparse(value) for value in node.value.elts)
    tuples = [target for target in node.targets if isinstance(target, ast.Tuple)]
    return any(sorted(ast.unparse(part) for part in target.elts) != values for target in tuples)


def test_no_function_is_too_long() -> None:
    elsewhere = [path for folder in ("research", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): long_functions(path.read_text()) for path in [*product(), *elsewhere]}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.long
def test_few_assignments_are_packed() -> None:
    assignments = [node for node in nodes(product()) if isinstance(node, ast.Assign)]
    packed = [ast.unparse(node) for node in assignments if is_packed(node)]
    assert len(packed) < MAX_PACKED_SHARE * len(assignments), packed


@pytest.mark.long
def test_few_expressions_are_conditional() -> None:
    conditionals = sum(isinstance(node, ast.IfExp) for node in nodes(product()))
    lines = sum(len(path.read_text().splitlines()) for path in product())
    assert 1000 * conditionals / lines < MAX_CONDITIONALS_PER_1000_LINES


def test_what_counts_as_long() -> None:
    body = "    pass\n" * (MAX_FUNCTION_LINES - 1)
    assert long_functions(f"def short():\n{body}") == []
    assert long_functions(f"def long():\n{body}    pass\n") == [f"long: {MAX_FUNCTION_LINES + 1}"]
    method = f"class A:\n    @property\n    async def long(self):\n{body}        pass\n".replace(
        "\n    pass", "\n        pass"
    )
    assert long_functions(method) == [f"long: {MAX_FUNCTION_LINES + 1}"]


def test_what_counts_as_packed() -> None:
    packed = ("a, b = 1, 2", "a, (b, c) = 1, x", "x = a, b = 1, 2", "a, b = b, c", "self.a, self.b = a, b")
    for statement in packed:
        assert is_packed(ast.parse(statement).body[0]), statement
    for statement in ("a, b = f()", "a = 1, 2", "a, b = b, a", "x[i], x[j] = x[j], x[i]", "a, *b = rows", "a: int = 1"):
        assert not is_packed(ast.parse(statement).body[0]), statement
