"""The flows against a real Prefect server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from shoal.engine.store.run_folder import RunFolder
from tests.runs import straight

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
Make = Callable[..., Any]
PATIENCE = 240
"""Seconds for what takes seconds on an idle machine."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A Prefect server of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.env = {**os.environ, "PREFECT_HOME": str(folder), "PREFECT_API_URL": self.api}
        self.log = (folder / "server.log").open("wb")
        command = [BIN / "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, env=self.env, stdout=self.log, stderr=self.log, start_new_session=True)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if requests.get(f"{self.api}/health", timeout=2).ok:
                    return
            except requests.RequestException:
                time.sleep(0.3)
        raise AssertionError("the Prefect server did not start")

    def stop(self) -> None:
        import signal

        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers; asked again while its database is busy, for a minute now and then."""
        deadline, url = time.monotonic() + 2 * PATIENCE, f"{self.api}/{path}"
        while (found := requests.request(method, url, json=body, timeout=PATIENCE)).status_code == 503:
            assert time.monotonic() < deadline, found.text
            time.sleep(0.5)
        found.raise_for_status()
        return found.json() if found.content else None

    def find(self, what: str, **body: Any) -> list[dict[str, Any]]:
        return self.ask("POST", f"{what}/filter", body)


def run_flow(server: Server, home: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {**server.env, "SHOAL_HOME": str(home)}
    script = home / "flow.py"
    script.write_text(f"if __name__ == '__main__':\n    {code}\n")
    return subprocess.run(
        [sys.executable, str(script)], env=env, cwd=home, capture_output=True, text=True, timeout=2 * PATIENCE
    )


PIPELINE = (
    "import sys; from shoal.flows.pipeline import pipeline; from shoal.engine.settings.run_settings import "
    "load_settings;"
    "from pathlib import Path; print(pipeline(load_settings(Path('settings.yaml')))['weights_sha256'])"
)


TITLE = "fedpnp on digits, 1 round"
"""Of a pipeline of one round, and of its preparation."""


def write_settings(home: Path, small: Make, **changes: Any) -> Any:
    import yaml

    settings = small(**changes)
    (home / "settings.yaml").write_text(yaml.safe_dump(settings.to_json()))
    return settings


def test_the_pipeline_names_its_runs_and_leaves_artifacts(server: Server, home: Path, small: Make) -> None:
    write_settings(home, small, rounds=2, tracking={"mlflow": True})
    done = run_flow(server, home, PIPELINE)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + PATIENCE
    wanted = {
        *("round 1, clients 0", "round 2, aggregate", "round 2, evaluate"),
        *("clusters of all samples", "figures and report", "log to MLflow", "register the model"),
    }
    names: list[str] = []
    while not wanted <= set(names) and time.monotonic() < deadline:  # task runs arrive as events
        names = [run["name"] for run in server.find("task_runs", limit=200)]
        time.sleep(0.5)
    assert {name: names.count(name) for name in wanted} == dict.fromkeys(wanted, 1)
    (flow_run,) = server.find("flow_runs", limit=50)
    assert flow_run["name"] == "fedpnp on digits, 2 rounds"
    assert sorted(flow_run["tags"]) == ["digits", "fedpnp"]
    assert {"prepare", "partition"} <= {name.rsplit("-", 1)[0] for name in names}
    kinds = {artifact["type"] for artifact in server.find("artifacts", limit=50)}
    assert "table" in kinds
    run = RunFolder.find("latest")
    prefect = run.status().tracking.prefect
    assert prefect is not None
    assert prefect.flow_run == flow_run["id"]
    assert prefect.page.startswith("http://127.0.0.1:")
    assert prefect.page.endswith(f"/runs/flow-run/{prefect.flow_run}")
    assert f'href="{prefect.page}"' in (run.path / "report.html").read_text()


@pytest.mark.slow
def test_a_search_is_a_flow_with_a_task_run_a_trial(server: Server, home: Path, small: Make) -> None:
    vary = {"local.lr": {"low": 0.001, "high": 0.1, "log": True}}
    settings = small(rounds=1, data={"limit": 60}, partition={"clients": 2}).to_json()
    (home / "search.json").write_text(json.dumps({"name": "toy", "settings": settings, "vary": vary, "trials": 2}))
    code = (
        "from shoal.flows.search_flow import search; from shoal.sweeps.search.definition import load_search; "
        "from pathlib import Path;"
        "print(len(search(load_search(Path('search.json')))['trials']))"
    )
    done = run_flow(server, home, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"
    assert "search toy" in {run["name"] for run in server.find("flow_runs", limit=50)}
    deadline = time.monotonic() + PATIENCE
    names: set[str] = set()
    while not {"trial 0", "trial 1"} <= names and time.monotonic() < deadline:  # task runs arrive as events
        names = {run["name"] for run in server.find("task_runs", limit=200)}
        time.sleep(0.5)
    assert {"trial 0", "trial 1"} <= names
    assert any("search toy" in (each["description"] or "") for each in server.find("artifacts", limit=50))
    assert (home / "results" / "searches" / "toy" / "search.html").exists()


@pytest.mark.slow  # a minute, in which the flow waits for the server
def test_a_lost_server_changes_no_bit(home: Path, small: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    from shoal.lifecycle.driving import drive
    from shoal.lifecycle.starting import new_run

    write_settings(home, small, rounds=3)
    whole = drive(new_run(small(rounds=3))).weights_sha256
    own = Server(tmp_path_factory.mktemp("lost"))
    code = (
        "import os, signal; from shoal.engine.store.run_folder import RunFolder; from shoal.lifecycle.starting import "
        "new_run;"
        "from shoal.engine.settings.run_settings import load_settings; from pathlib import Path;"
        "from shoal.flows.federate import run_with_prefect;"
        f"stop = lambda e: os.killpg({own.process.pid}, signal.SIGKILL) if (e.kind, e.round) == "
        "('round_finished', 1) else None;"
        "print(run_with_prefect(new_run(load_settings(Path('settings.yaml'))), [stop]).weights_sha256);"
        "from shoal.cli.main import leave; leave(0)"
    )
    try:
        done = run_flow(own, home, code)
    finally:
        own.stop()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == whole


@pytest.mark.slow
def test_shoal_run_is_one_flow_run_and_a_finished_run_keeps_its_figures(
    server: Server, home: Path, small: Make
) -> None:
    write_settings(home, small, rounds=1, tracking={"prefect": "auto"})
    code = (
        "from shoal.flows.execute import execute; from shoal.lifecycle.starting import new_run;"
        "from pathlib import Path; from shoal.engine.settings.run_settings import load_settings;"
        "run = new_run(load_settings(Path('settings.yaml'))); execute(run);"
        "drawn = {path: path.stat().st_mtime_ns for path in (run.path / 'figures').iterdir()};"
        "from shoal.engine.store.run_folder import RunFolder; from shoal.flows.federate import run_with_prefect;"
        "run_with_prefect(RunFolder(run.path));"
        "print(bool(drawn) and all(path.stat().st_mtime_ns == at for path, at in drawn.items()))"
    )
    before = {flow_run["id"] for flow_run in server.find("flow_runs", limit=50)}
    done = run_flow(server, home, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"
    new = [each for each in server.find("flow_runs", limit=50) if each["id"] not in before]
    assert [each["name"] for each in new] == ["fedpnp on digits, 1 round"] * 2, "one for each call"
    flow_run = min(new, key=lambda each: each["created"])
    assert sorted(flow_run["tags"]) == ["digits", "fedpnp"]
    run = RunFolder.find("latest")
    assert run.status().tracking.prefect.flow_run == flow_run["id"]


BUSY = (
    "import httpx; from prefect.client.orchestration import PrefectClient; from prefect.exceptions import "
    "PrefectHTTPStatusError; request = httpx.Request('POST', 'http://127.0.0.1/api/task_runs/')\n"
    "    async def busy(self, *a, **k): raise PrefectHTTPStatusError('503 Service Unavailable', request=request, "
    "response=httpx.Response(503, request=request))\n"
    "    PrefectClient.create_task_run = PrefectClient.create_artifact = busy; "
)
"""A server whose database stays locked once the flow run has begun."""


@pytest.mark.slow
def test_a_server_that_is_busy_during_a_run_costs_nothing(server: Server, home: Path, small: Make) -> None:
    write_settings(home, small, rounds=2)
    done = run_flow(server, home, BUSY + PIPELINE)
    assert done.returncode == 0, done.stderr
    run = RunFolder.find("latest")
    assert done.stdout.split()[-1] == straight(small(rounds=2)).status().weights_sha256
    assert run.events()[-1].kind == "pipeline_ended"
    assert (run.path / "report.html").exists()
    states = {each["state_type"] for each in server.find("flow_runs", flow_runs={"name": {"like_": "2 rounds"}})}
    assert states == {"COMPLETED"}


@pytest.mark.long
def test_a_lost_connection_is_one_line() -> None:
    import logging

    import httpx

    import shoal.flows.federate  # noqa: F401 (which sees to it)

    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):  # not caplog's, which sees a record twice where the logger hands it on
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log, kept = logging.getLogger("prefect.flow_runs"), Kept()
    log.addHandler(kept)
    try:
        for error in (httpx.ConnectError("refused"), ValueError("ours")):
            try:
                raise error
            except Exception:
                log.exception("it failed")
    finally:
        log.removeHandler(kept)
    assert [bool(record.exc_info) for record in records] == [False, True]


def register(server: Server, home: Path, *, reset: bool = False) -> bool:
    """Register the deployments of the home's prefect.yaml, as `shoal serve` does."""
    from shoal.serving import deployments

    def prefect(*words: str) -> None:
        env = {**server.env, "PREFECT_CLIENT_MAX_RETRIES": "5"}  # as `shoal serve` has it
        subprocess.run([BIN / "prefect", *words], cwd=home, env=env, check=True, capture_output=True)

    (home / "work").mkdir(exist_ok=True)
    deployments.make_pool(server.api, {"SHOAL_HOME": str(home)}, prefect)
    return deployments.register(server.api, deployments.read_project(home), home / "work", prefect, reset=reset)


@pytest.mark.slow
def test_a_cron_deployment_schedules_runs_and_is_registered_again(server: Server, home: Path) -> None:
    """Newer SQLAlchemy versions make schedules fail in silence: this is the test that notices."""
    (home / "flows").symlink_to(ROOT / "flows")
    (home / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    assert not register(server, home)
    deployments = server.find("deployments")
    assert {d["name"] for d in deployments} == {"nightly", "assign", "on-demand", "search", "tell"}
    assert [d["pull_steps"] for d in deployments] == [
        [{"prefect.deployments.steps.set_working_directory": {"directory": str(home)}}]
    ] * 5
    nightly = next(d for d in deployments if d["name"] == "nightly")
    properties = nightly["parameter_openapi_schema"]["properties"]
    assert {"settings", "night"} <= properties.keys()
    deadline = time.monotonic() + PATIENCE
    scheduled: list[dict[str, Any]] = []
    while not scheduled and time.monotonic() < deadline:
        runs = server.find("flow_runs", deployments={"id": {"any_": [nightly["id"]]}})
        scheduled = [run for run in runs if run["state_type"] == "SCHEDULED"]
        time.sleep(1)
    assert scheduled
    assert all("T03:00:00" in run["expected_start_time"] for run in scheduled)
    what_a_user_set_on_prefects_page_survives(server, home)


def what_a_user_set_on_prefects_page_survives(server: Server, home: Path) -> None:
    """Registering again keeps schedules and parameters, until it is asked not to."""

    def known(name: str) -> dict[str, Any]:
        return next(each for each in server.find("deployments") if each["name"] == name)

    # As the page does it: another hour and paused, another setting, a schedule where there was none.
    nightly, on_demand = known("nightly"), known("on-demand")
    path = f"deployments/{nightly['id']}"
    (schedule,) = nightly["schedules"]
    changed = {"active": False, "schedule": {"cron": "30 5 * * *", "timezone": "Asia/Tokyo"}}
    server.ask("PATCH", f"{path}/schedules/{schedule['id']}", changed)
    parameters = {**nightly["parameters"], "settings": {**nightly["parameters"]["settings"], "rounds": 7}}
    server.ask("PATCH", path, {"parameters": parameters, "paused": True})
    added = [{"active": True, "schedule": {"interval": 3600}}]
    server.ask("POST", f"deployments/{on_demand['id']}/schedules", added)

    assert register(server, home)
    after = known("nightly")
    assert after["id"] == nightly["id"]
    assert [(s["schedule"]["cron"], s["schedule"]["timezone"], s["active"]) for s in after["schedules"]] == [
        ("30 5 * * *", "Asia/Tokyo", False)
    ]
    assert after["parameters"]["settings"]["rounds"] == 7
    assert after["paused"]
    assert [s["schedule"]["interval"] for s in known("on-demand")["schedules"]] == [3600]

    assert not register(server, home, reset=True)
    # Each registration replaces the automations and adds none.
    assert sorted(a["name"] for a in server.find("automations")) == [
        *("a night failed", "new data are unlike the old", "new data start a night", "new files are assigned"),
    ]
    assert [(s["schedule"]["cron"], s["active"]) for s in known("nightly")["schedules"]] == [("0 3 * * *", True)]
    assert known("nightly")["parameters"]["settings"]["rounds"] == 5
    pool = server.ask("GET", "work_pools/shoal")
    assert pool["base_job_template"]["variables"]["properties"]["env"]["default"] == {"SHOAL_HOME": str(home)}
