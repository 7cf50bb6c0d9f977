"""New data start the deployments that they concern, on a real Prefect server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.data import arrived
from shoal.core.errors import ShoalError
from shoal.serving import data_events
from shoal.serving.data_events import FolderWatch, announce_data, fingerprint, folders_of, trains_on
from tests.flows.test_prefect import PATIENCE, ROOT, Server, register


def started(server: Server, deployment: str, count: int) -> int:
    """How many flow runs of a deployment automations have made, once there are so many, or after a while."""
    deadline = time.monotonic() + PATIENCE
    while True:
        runs = server.find("flow_runs", flows={"name": {"any_": [deployment]}}, limit=50)
        found = [run for run in runs if not run["auto_scheduled"]]
        if len(found) >= count or time.monotonic() > deadline:
            return len(found)
        time.sleep(0.5)


def watching(server: Server, home: Path, watch: str | None, data: str) -> None:
    """Register the deployments, and set what `nightly` watches and trains on, as on Prefect's page."""
    (home / "flows").symlink_to(ROOT / "flows")
    (home / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    register(server, home)
    nightly = next(each for each in server.find("deployments") if each["name"] == "nightly")
    assert nightly["global_concurrency_limit"]["limit"] == 1
    parameters = nightly["parameters"]
    parameters["settings"]["data"] = {"name": data}
    parameters["night"]["watch"] = watch
    server.ask("PATCH", f"deployments/{nightly['id']}", {"parameters": parameters})


def test_a_folder_is_announced_once_it_stays_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, which `test_files_in_a_watched_folder_start_a_night_once` has."""
    nightly = {"name": "nightly", "parameters": {"settings": {"data": {"name": "photos"}}, "night": {"watch": "new"}}}
    events: list[tuple[str, str]] = []
    busy: list[bool] = []
    monkeypatch.setattr(data_events, "known_deployments", lambda api: [nightly])
    monkeypatch.setattr(data_events, "announce", lambda api, name, what: events.append((name, what)))
    monkeypatch.setattr(data_events, "is_busy", lambda api, name: bool(busy))
    told: list[str] = []
    watch = FolderWatch("", home / "watched.json", told.append)
    assert (watch.check(), watch.check()) == ([], [])  # there is no folder yet
    assert told == [f"nightly watches {home / 'new'}: new files in it start it"]
    (home / "new").mkdir()
    (home / "new" / "a.png").write_bytes(b"1")
    assert watch.check() == []  # it may still be copied
    busy.append(True)
    assert watch.check() == []  # another night runs
    busy.clear()
    assert (watch.check(), watch.check()) == (["nightly"], [])
    again = FolderWatch("", home / "watched.json", told.append)
    assert (again.check(), again.check()) == ([], [])  # the service was started again
    monkeypatch.setenv("PREFECT_API_URL", "http://somewhere")
    assert (announce_data("new"), announce_data("photos")) == (["nightly"], [])  # its own nights add to it
    assert events == [("nightly", str(home / "new")), ("nightly", "new")]


@pytest.mark.long
def test_files_in_a_watched_folder_start_a_night_once(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching(server, home, "incoming", "photos")
    told: list[str] = []
    watch = FolderWatch(server.api, home / "watched.json", told.append)
    assert (watch.check(), watch.check()) == ([], [])  # there is no folder yet
    (line,) = told
    assert line.startswith(f"nightly watches {home / 'incoming'}: new files in it start it")
    (home / "incoming" / "north").mkdir(parents=True)
    (home / "incoming" / "north" / "a.png").write_bytes(b"1")
    assert watch.check() == []  # it may still be copied
    assert watch.check() == ["nightly"]
    assert watch.check() == []
    assert started(server, "nightly", 1) == 1
    again = FolderWatch(server.api, home / "watched.json", told.append)
    assert (again.check(), again.check()) == ([], [])  # the service was started again
    (home / "incoming.dvc").write_text("outs: other\n")  # `git pull` brought what somebody pushed with DVC
    assert (again.check(), again.check()) == ([], ["nightly"])
    monkeypatch.setenv("PREFECT_API_URL", server.api)
    arrived("incoming")
    with pytest.raises(ShoalError, match="no deployment watches the folder or trains on the set 'elsewhere'"):
        arrived("elsewhere")
    assert announce_data("photos") == []  # its own nights add to it
    assert started(server, "nightly", 3) == 3


@pytest.mark.long
def test_a_run_that_is_due_while_another_one_runs_is_skipped(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching(server, home, "incoming", "photos")
    nightly = next(each for each in server.find("deployments") if each["name"] == "nightly")
    state = {"state": {"type": "SCHEDULED"}}
    first, second = (server.ask("POST", f"deployments/{nightly['id']}/create_flow_run", state) for _ in range(2))

    def moved(run: dict[str, Any], to: str) -> str:
        body = {"state": {"type": to}, "force": to == "COMPLETED"}
        server.ask("POST", f"flow_runs/{run['id']}/set_state", body)
        return str(server.ask("GET", f"flow_runs/{run['id']}")["state_type"])

    folder = home / "incoming" / "north"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(b"1")
    watch = FolderWatch(server.api, home / "watched.json", lambda line: None)
    assert watch.check() == []
    assert (moved(first, "PENDING"), moved(first, "RUNNING")) == ("PENDING", "RUNNING")
    assert moved(second, "PENDING") == "CANCELLED"
    assert watch.check() == []  # a run of its own would be skipped, too
    assert moved(first, "COMPLETED") == "COMPLETED"
    assert watch.check() == ["nightly"]


def test_a_set_that_was_added_starts_the_night_that_trains_on_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nightly = {"parameters": {"settings": {"data": {"name": "mine"}}, "night": {"watch": None}, "again": True}}
    nightly["parameters"] |= {"nobody": {"watch": "~nosuchuser/in"}, "zero": {"watch": "a\0b"}}
    assert folders_of(nightly) == []
    assert trains_on(nightly, "mine")
    assert not trains_on(nightly, "other")
    assert not trains_on({"parameters": {"what": "mine"}}, "mine")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert announce_data("mine") == []


def test_a_fingerprint_tells_names_sizes_times_and_the_pointer(home: Path) -> None:
    folder = home / "incoming"
    assert fingerprint(folder) == ""
    folder.mkdir()
    assert fingerprint(folder) == ""
    fingerprints = {fingerprint(folder)}
    (folder / "a").write_text("1")
    fingerprints.add(fingerprint(folder))
    assert fingerprint(folder) in fingerprints
    (folder / "a").write_text("12")
    fingerprints.add(fingerprint(folder))
    (folder / "a").rename(folder / "b")
    fingerprints.add(fingerprint(folder))
    (home / "incoming.dvc").write_text("x")
    fingerprints.add(fingerprint(folder))
    assert len(fingerprints) == 5
