"""The demonstration: its settings, its table, its page, and the table in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli import demo as demonstration
from shoal.cli.console import out
from shoal.engine.store.run_folder import RunFolder
from shoal.sweeps.sweep import Sweep

pytestmark = pytest.mark.long

TINY = {
    "rounds": 1,
    "data": {"limit": 300},
    "local": {"epochs": 1},
    "model": {"encoder": "tiny-conv"},
    "workers": {"device": "cpu", "slots": 1},
    "tracking": {"mlflow": False, "prefect": "off"},
}
ROOT = Path(demonstration.__file__).resolve().parents[2]


def test_the_budget_alone_and_together_is_the_same() -> None:
    plan = demonstration.planned(3)
    assert {settings.seed for settings in plan.values()} == {3}
    for clients in demonstration.CLIENT_WORDS:
        single_settings = plan[clients, "alone"]
        together = plan[clients, "together"]
        assert single_settings.method.name == "single"
        assert (single_settings.rounds, single_settings.local.epochs, single_settings.local.batch) == (20, 5, 64)
        # The rounds in which federated K-means finds the clusters take no step.
        trained = together.rounds - getattr(together.method, "kmeans_rounds", 0)
        assert (trained, together.local.epochs, together.local.batch) == (20, 5, 64)
        assert single_settings.partition == together.partition
    assert plan["alike", "together"].partition.kind == "iid"
    assert plan["unlike", "together"].partition.kind == "dirichlet"


def test_it_ends_with_a_table_a_page_and_commands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(home / ".venv" / "bin" / "shoal"), "demo"])
    with out.capture() as written:
        page = demonstration.show_demo(changes=TINY)
    said = written.get()
    for label in demonstration.LABELS.values():
        assert label in said
    assert said.count("K-means on pixels, pooled") == 2  # the floor of both
    assert said.count("verdict on fed") == 2  # the runs of all clients together
    assert [line.split()[:2] for line in said.splitlines()[-3:]] == [
        [".venv/bin/shoal", "serve"],
        [".venv/bin/shoal", "data"],
        [".venv/bin/shoal", "run"],
    ]
    reports = [line.split()[:3] for line in said.splitlines() if "in a browser" in line]
    assert reports == [[".venv/bin/shoal", "open", path.name] for path in reports_of(home)]
    assert page == home / "results" / "demo" / "demo.html"
    assert page.read_text().count("<table") >= 2


@pytest.mark.slow
def test_it_continues_where_it_was_interrupted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    def complete(self: Sweep, run: RunFolder, *given: Any) -> None:
        began.append(run.name)
        if len(began) == 2:
            raise KeyboardInterrupt
        original(self, run, *given)

    original = Sweep.complete
    monkeypatch.setattr(Sweep, "complete", complete)
    plan = demonstration.planned(changes=TINY)
    monkeypatch.setattr(demonstration, "planned", lambda *_: plan)
    stopped = CliRunner().invoke(demonstration.app)
    assert stopped.exit_code == 130
    again = CliRunner().invoke(demonstration.app)
    assert again.exit_code == 0, again.output
    assert began[2:4] == began[:2], "the finished run, and the one that was cut short"
    assert len(set(began)) == 5


def reports_of(home: Path) -> list[Path]:
    """Runs of clients together, in the order of the table."""
    found = [*(home / "runs").glob("*_fedcc_*"), *(home / "runs").glob("*_fedsimclr_kmeans_*")]
    assert all((path / "report.html").exists() for path in found)
    return found
