"""What the person at a site types: the policy, an approval, the log, a pause, and a run that is forgotten."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.site_commands import app
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.sites.frames import SiteAnswer, SiteCall, pack
from shoal.engine.sites.own_rules import WAITS, OwnRules
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import new_run
from tests.conftest import SMALL

RUN = "5f0c" * 8


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def run(home: Path) -> Path:
    """A run that a lead has opened here."""
    settings = make_settings({**SMALL, "data": {"name": "gaussian"}, "method": "fedkmeans", "rounds": 3})
    path = places.runs() / RUN
    shutil.copytree(new_run(settings).path, path)
    return path


def test_a_site_without_a_policy_gets_one_that_refuses_every_run(home: Path) -> None:
    text = said("policy")
    assert "none: every run is refused" in text
    assert f"{shoal_version().sha256}, not approved" in text
    policy = places.site() / "policy.yaml"
    policy.write_text(policy.read_text().replace("code: []", f"code: [{shoal_version().sha256}]"))
    assert f"{shoal_version().sha256}, approved" in said("policy")


def test_a_run_is_approved_after_its_settings_were_shown(run: Path) -> None:
    told: list[str] = []
    rules = OwnRules(places.site(), tell=told.append)
    rules.leave(SiteCall("open", "", run=RUN), pack(SiteAnswer(f"run {RUN} {WAITS} 5f0c5f0c` there"), {}))
    assert told == [f"run {RUN} waits for `shoal site approve 5f0c5f0c` there"]
    assert "shoal site approve 5f0c5f0c" in said("policy")
    settings = RunFolder(run).settings()
    result = CliRunner().invoke(app, ["approve", "5f"], input="n\n")
    assert "rounds: 3" in result.output
    assert not rules.is_approved(RUN, settings)
    said("approve", "5f", "--yes")
    assert rules.is_approved(RUN, settings)
    assert not rules.is_approved(RUN, replace(settings, rounds=9))
    assert "shoal site approve" not in said("policy")
    (run / "settings.yaml").unlink()  # as where a site was killed while it made the run
    said("forget", "5f")
    assert not run.exists()
    assert not rules.is_approved(RUN, settings)
    assert "has forgotten" in str(rules.refusal(SiteCall("open", "", "wards", RUN), settings, 100))
    said("forget", "5f", code=1)


def test_a_pause_ends(home: Path) -> None:
    call = SiteCall("describe", "", "wards")
    said("policy")
    said("pause")
    assert OwnRules(places.site()).refusal(call, None, None) == "it is paused"
    said("pause", "--off")
    assert "`data`" in str(OwnRules(places.site()).refusal(call, None, None))


def test_a_site_takes_no_module_of_the_current_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("os.execv", lambda _, words: begun.extend(words))
    said("serve", code=1)  # it goes on here, and there is no study
    assert begun[1:] == ["-P", "-m", "shoal.cli.main", "site", "serve"]


def test_the_log_lists_what_left(home: Path) -> None:
    rules = OwnRules(places.site())
    rules.leave(SiteCall("train", "", run=RUN, round=7), pack(SiteAnswer(facts={"0": {"done": {}}}), {}))
    rules.leave(None, pack(SiteAnswer("no message of Shoal"), {}))
    text = said("log")
    assert "5f0c5f0c" in text
    assert "0.done" in text
    assert rules.log.entries()[0]["sha256"][:12] in text
    assert "no message of Shoal" in text
    assert "complete" in text
    assert "no message" not in said("log", "--run", "5f")
