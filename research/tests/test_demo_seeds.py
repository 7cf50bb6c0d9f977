"""The demonstration over several seeds, and its table on the page."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.cli import demo as demonstration
from shoal_research.benchmarks.demo import measure, table
from tests.sources import ROOT


def test_seeds_that_are_measured_are_not_run_again(home: Path) -> None:
    path = home / "demo.json"
    cell = {"acc": 0.5, "method": "kmeans"}
    ways = {"floor": cell, "alone": {**cell, "method": "single"}, "together": {"acc": 0.75, "method": "fedcc"}}
    kept = {"0": dict.fromkeys(demonstration.CLIENT_WORDS, ways)}
    path.write_text(json.dumps(kept))
    assert measure([0], path) == kept
    shown = table(kept)
    assert shown.count("ahead of the floor on 1 of 1 seeds") == 2
    assert "| together: FedCC | 0.750 | 0.750 |" in shown


def test_the_table_in_the_docs_is_made_from_the_numbers() -> None:
    measured = json.loads((ROOT / "research" / "docs" / "demo.json").read_text())
    assert sorted(measured) == ["0", "1", "2", "3", "4"]
    assert table(measured) in (ROOT / "research" / "docs" / "results" / "digits.md").read_text()
