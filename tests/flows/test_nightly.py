"""Five nights in a real Prefect, and who is told of the bad one."""

from __future__ import annotations

import inspect
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.settings.run_settings import make_settings
from shoal.flows.nightly import tell_left_out
from shoal.flows.tell import tell
from shoal.lifecycle.notification import TellError
from shoal.lifecycle.taking_in import MAX_NAMED, TakenIn
from tests.flows.test_prefect import ROOT, Server, register, run_flow

Line = dict[str, Any]


@pytest.mark.slow
def test_five_nights(server: Server, home: Path) -> None:
    (home / "flows").symlink_to(ROOT / "flows")
    (home / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    register(server, home)
    env = {**server.env, "SHOAL_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.five_nights"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first, second, third, broken, wrong, fifth = (json.loads(line) for line in done.stdout.splitlines())

    assert first["night"]["outcome"] == "promoted"
    assert first["aliases"]["champion"] == "1"
    assert "there is no champion" in first["events"][0]["message"]

    assert second["night"]["outcome"] == "promoted"
    assert second["night"]["new"] == 660
    assert second["clients"] == [*first["clients"], "abroad"]
    assert second["versions"] == [first["data"]]
    assert second["origin"]["run"] == first["night"]["run"]
    assert second["aliases"]["champion"] == "2"
    tags = second["champion"]
    assert tags["shoal.night.why"] == second["night"]["why"]
    assert "at least the margin 0.02" in tags["shoal.night.why"]

    what_is_there = ("data", "versions", "aliases", "models", "champion", "runs")
    assert third["night"]["outcome"] == "nothing new"
    for bad in (third, broken, wrong):
        assert [bad[key] for key in what_is_there] == [second[key] for key in what_is_there]
    assert "north/broken.png: unreadable or truncated" in broken["error"]
    assert "60 of 60 new images" in wrong["error"]
    assert "unlike every image that 'photos' has" in wrong["error"]

    assert "error" not in fifth, done.stderr
    assert any("client south" in message for message in fifth["night"]["drift"])
    assert {"south", ""} <= {event.get("client") for event in fifth["events"] if event["event"] == "drift"}
    assert not any(line["night"]["drift"] for line in (first, second, third))
    page = (home / "runs" / fifth["night"]["run"] / "report.html").read_text()
    assert "night decided" in page
    assert "cluster shares of client south differ" in page

    tables = [each for each in server.find("artifacts", limit=100) if each["key"] == "night-photos"]
    assert len(tables) == 3
    assert any("against the champion's" in str(each["data"]) for each in tables)
    told = (home / "runs" / "told.log").read_text().splitlines()
    for line, error in zip(told, ("north/broken.png", "60 of 60 new images"), strict=True):
        assert "Z a night failed: night of photos (" in line
        assert error in line


FAILS = (
    "from shoal.flows.nightly import nightly; from shoal.lifecycle.night_settings import NightSettings;"
    "from shoal.engine.settings.run_settings import make_settings; from prefect.events import emit_event;"
    "photos = {'prefect.resource.id': 'shoal.data.photos', 'prefect.resource.name': 'photos'};"
    "emit_event('shoal.drift', resource=photos, payload={'message': 'other than before'});"
    "nightly(make_settings({'method': 'fedpnp', 'data': {'name': 'photos'}}), NightSettings(watch='incoming'))"
)


@pytest.mark.slow
def test_a_failed_night_is_told_by_itself_and_by_an_automation(server: Server, home: Path) -> None:
    (home / "flows").symlink_to(ROOT / "flows")
    (home / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    register(server, home)

    def told(what: str) -> list[str]:
        """What the automations had the deployment `tell` say so far."""
        runs = [run["parameters"] for run in server.find("flow_runs", flows={"name": {"any_": ["tell"]}})]
        return [given["message"] for given in runs if given["what"] == what]

    def both() -> bool:
        return "photos: other than before" in told("drift") and any(
            "does not exist" in m for m in told("a night failed")
        )

    for attempt in range(4):  # an action is lost where Prefect's SQLite database is locked for long
        done = run_flow(server, home, FAILS)
        assert "the watched folder" in done.stderr
        lines = (home / "runs" / "told.log").read_text().splitlines()
        assert len(lines) == attempt + 1
        deadline = time.monotonic() + 20
        while not both() and time.monotonic() < deadline:
            time.sleep(0.5)
        if both():
            break
    assert both()
    failed = next(message for message in told("a night failed") if "does not exist" in message)
    assert "encountered an exception: DataError: the watched folder" in failed
    assert all("): the watched folder" in line for line in lines)
    assert "night of photos (" in failed
    assert not list((home / "runs").glob("*/settings.yaml"))


def test_only_some_of_the_files_that_were_left_out_are_named(home: Path) -> None:
    settings = make_settings({"data": {"name": "photos"}})
    for count in (MAX_NAMED, MAX_NAMED + 3):
        files = tuple(f"{number:02d}.png: unreadable" for number in range(count))
        tell_left_out(settings, TakenIn("", "", 0, "", files), logging.getLogger())
    first, second = (home / "runs" / "told.log").read_text().splitlines()
    assert first.endswith("photos: 10 new files left out: " + "; ".join(files[:MAX_NAMED]))
    assert second.endswith(f"13 new files left out: {'; '.join(files[:10])}; and 3 more (`shoal data show photos`)")


def test_telling_writes_a_line_once(home: Path) -> None:
    line = tell.fn("it broke:\n  here", "a night failed")
    assert line.endswith("a night failed: it broke: here")
    tell.fn("it broke: here", "a night failed")
    told = home / "runs" / "told.log"
    assert told.read_text() == f"{line}\n"
    told.unlink()
    told.mkdir()
    with pytest.raises(TellError, match=r"you could not be notified: .*told.log cannot be written"):
        tell.fn("x")
    assert set(inspect.signature(tell.fn).parameters) == {"message", "what"}
