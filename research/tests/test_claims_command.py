"""`shoal claims`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.cli.main import app
from shoal.core.errors import ShoalError
from shoal_research.definition import load_study
from shoal_research.judging import Verdict


def run(*words: str) -> None:
    app(["claims", *words], standalone_mode=False)


def test_a_folder_of_results_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"there is no folder .*nowhere: --keep STUDY makes it"):
        run("cfl-toy-paths", "--docs", str(tmp_path / "nowhere"))


def test_claims_are_shown_with_verdict_and_what_measures_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("fedpnp-table1", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert {entry["claim"] for entry in shown} == {claim.claim for claim in load_study("fedpnp-table1").claims}
    assert {entry["verdict"] for entry in shown} <= set(Verdict)
    absolute = next(entry for entry in shown if "within 3 points of the paper's 66.5" in entry["claim"])
    assert absolute["command"] == "shoal study fedpnp-table1 --scale paper"
    run("fedpnp-table1")
    lines = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "fedpnp-table1: clustering scores of FedPNP and its baselines" in lines
    partly = [
        entry for entry in shown if entry["verdict"] == Verdict.MISSING and 0 < len(entry["seeds"]) < entry["planned"]
    ]
    words = {"not decided yet" if entry in partly else entry["verdict"] for entry in shown}
    assert all(word in lines for word in words)
