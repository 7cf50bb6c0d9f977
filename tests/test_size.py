"""How large the product and its tests are, in syntax nodes: what grows is seen, and has to be asked for here."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.sources import ROOT, rooms, sources

MOST_PRODUCT_NODES = 345_310
MOST_CORE_NODES = 160_500
"""Of the rooms between a settings file and a gradient."""
CORE = ("methods", "engine/settings", "engine/store", "engine/rounds", "engine/messages", "engine/workers")
MOST_TEST_NODES = 409_900
"""Of tests/ and research/tests/."""


def nodes(path: Path) -> int:
    return sum(1 for _ in ast.walk(ast.parse(path.read_text())))


def test_the_product_does_not_grow_unseen() -> None:
    by_room = {room: sum(map(nodes, sources(room))) for room in rooms()}
    by_room["shoal"] = nodes(ROOT / "shoal" / "__init__.py")
    core = sum(nodes(path) for folder in CORE for path in (ROOT / "shoal" / folder).rglob("*.py"))
    tests = sum(
        nodes(path) for folder in (ROOT / "tests", ROOT / "research" / "tests") for path in folder.rglob("*.py")
    )
    for room, count in sorted(by_room.items(), key=lambda entry: -entry[1]):
        print(f"{room:10} {count:8,}")
    print(f"{'product':10} {sum(by_room.values()):8,}\n{'core':10} {core:8,}\n{'tests':10} {tests:8,}")
    assert sum(by_room.values()) <= MOST_PRODUCT_NODES
    assert core <= MOST_CORE_NODES
    assert tests <= MOST_TEST_NODES
