"""How large the product and its tests are, in syntax nodes: what grows is seen, and has to be asked for here."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.sources import ROOT, rooms, sources

MOST_HOUSE_NODES = 292_500
"""Of the product, without what lies in APART."""
MOST_CORE_NODES = 156_700
"""Of the rooms between a settings file and a gradient, with what of APART lies there."""
CORE = ("methods", "engine/settings", "engine/store", "engine/rounds", "engine/messages", "engine/workers")
MOST_APART_NODES = 37_600
"""Of APART, which has an account of its own: files that only these four need, beside which the house must not grow."""
APART = {
    "sites whose samples stay there": (
        "data/sets/elsewhere.py",
        "shoal/cli/site_commands.py",
        "shoal/cli/sites.py",
        "shoal/engine/rounds/site_evaluation.py",
        "shoal/engine/sites/*.py",
        "shoal/lifecycle/site_baseline.py",
        "shoal/lifecycle/site_nights.py",
        "shoal/lifecycle/site_number.py",
        "shoal/methods/contract/site_sums.py",
        "shoal/methods/features/number_steps.py",
        "shoal/methods/scores/withheld.py",
        "shoal/review/results/site_clusters.py",
    ),
    "what a server can read": (
        "shoal/engine/messages/fixed_point.py",
        "shoal/engine/messages/masks.py",
        "shoal/engine/rounds/summed_rounds.py",
        "shoal/methods/features/private_sums.py",
        "shoal/methods/features/robust_totals.py",
        "shoal/methods/features/summed_starts.py",
        "shoal/review/served/row_reading.py",
        "shoal/review/served/server_view.py",
    ),
    "sites that differ": (
        "shoal/methods/features/column_facts.py",
        "shoal/methods/features/landmark_offsets.py",
        "shoal/methods/features/offsets.py",
        "shoal/methods/features/representation.py",
        "shoal/methods/scores/twins.py",
        "shoal/review/pages/site_effects.py",
    ),
    "verdicts without labels, and labels that come later": (
        "shoal/cli/score.py",
        "shoal/methods/scores/no_groups.py",
        "shoal/review/results/label_scores.py",
    ),
}
MOST_TEST_NODES = 411_250
"""Of tests/ and research/tests/."""


def nodes(path: Path) -> int:
    return sum(1 for _ in ast.walk(ast.parse(path.read_text())))


def test_the_product_does_not_grow_unseen() -> None:
    by_room = {room: sum(map(nodes, sources(room))) for room in rooms()}
    by_room["shoal"] = nodes(ROOT / "shoal" / "__init__.py")
    core = sum(nodes(path) for folder in CORE for path in (ROOT / "shoal" / folder).rglob("*.py"))
    apart = {what: {name: sum(map(nodes, ROOT.glob(name))) for name in names} for what, names in APART.items()}
    tests = sum(
        nodes(path) for folder in (ROOT / "tests", ROOT / "research" / "tests") for path in folder.rglob("*.py")
    )
    assert all(count for counts in apart.values() for count in counts.values()), "a file of APART is gone"
    beside = sum(sum(counts.values()) for counts in apart.values())
    house = sum(by_room.values()) - beside
    by_part = by_room | {what: sum(counts.values()) for what, counts in apart.items()}
    for part, count in [*by_part.items(), ("house", house), ("apart", beside), ("core", core), ("tests", tests)]:
        print(f"{part:52} {count:8,}")
    assert house <= MOST_HOUSE_NODES
    assert beside <= MOST_APART_NODES
    assert core <= MOST_CORE_NODES
    assert tests <= MOST_TEST_NODES
