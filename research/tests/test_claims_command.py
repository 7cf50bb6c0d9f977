"""`shoal claims`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shoal.cli.main import app
from shoal_research.claims import Verdict
from shoal_research.definition import load_study


def run(*words: str) -> None:
    app(["claims", *words], standalone_mode=False)


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
    assert all(entry["verdict"] in lines for entry in shown)
    assert "0 of 3 planned seeds have run" in lines
    assert re.search(r"undecided .* \(-0\.5 \[-4\.0, \+3\.0\], true on \d of 10 seeds\)", lines)
