"""`shoal serve` as a user has it: a clone in a folder of its own, no variable of Shoal's, no activated environment."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from rich.console import Console

from flows import serve as serving
from flows.serve import JOB_RETRIES, RETRIES, SERVER_AUTH, what_is_open
from tests.flows.test_prefect import free_port

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
OURS = ("SHOAL_", "PREFECT_", "MLFLOW_", "VIRTUAL_ENV")
PATIENCE = 420
"""Seconds for what takes ten on an idle machine: Prefect's SQLite server at times stands still for a minute or two."""
TINY: dict[str, Any] = {
    "method": {"name": "fedpnp"},
    "data": {"name": "digits", "limit": 240},
    "partition": {"kind": "iid", "clients": 3},
    "model": {"encoder": "tiny-conv"},
    "local": {"epochs": 1, "batch": 32},
    "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
    "tracking": {"model": False, "system": False},
}


def eventually(look: Callable[[], Any], what: str, every: float = 0.5) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(every)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


def clone(folder: Path) -> Path:
    """What a clone of this working tree would be, as one commit."""
    git = ("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z")
    for name in subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def commit(folder: Path) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


class Served:
    """`shoal serve` in a clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = clone(folder / "clone")
        path = self.folder / "prefect.yaml"
        project = yaml.safe_load(path.read_text())
        (on_demand,) = (each for each in project["deployments"] if each["name"] == "on-demand")
        every_minute = {"name": "every-minute", "parameters": {"settings": {**TINY, "rounds": 15}}}
        project["deployments"].append({**on_demand, **every_minute, "schedules": [{"cron": "* * * * *"}]})
        path.write_text(yaml.safe_dump(project))
        self.commit = commit(self.folder)
        self.port, self.mlflow_port = free_port(), free_port()
        self.api, self.page = f"http://127.0.0.1:{self.port}/api", f"http://127.0.0.1:{self.mlflow_port}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.env |= {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "DO_NOT_TRACK": "1"}
        ports = ("--port", str(self.port), "--mlflow-port", str(self.mlflow_port))
        self.process = subprocess.Popen(
            [BIN / "shoal", "serve", *ports],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def started(self) -> bool:
        assert self.process.poll() is None, "".join(self.lines)
        return any("Ctrl-C" in line for line in self.lines)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(PATIENCE)

    def prefect(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Prefect's command line in another shell."""
        env = {**self.env, "PREFECT_API_URL": self.api, "COLUMNS": "300"}
        return subprocess.run(
            [BIN / "prefect", *words], cwd=self.folder.parent, env=env, capture_output=True, text=True, timeout=PATIENCE
        )

    def find(self, what: str, **body: Any) -> list[dict[str, Any]]:
        return self.ask("POST", f"{what}/filter", body).json()

    def ask(self, how: str, path: str, body: dict[str, Any]) -> requests.Response:
        """A question to the API, again where the server says that its database is busy."""

        def answer() -> requests.Response | None:
            found = requests.request(how, f"{self.api}/{path}", json=body, timeout=PATIENCE)
            return None if found.status_code == 503 else found

        found = eventually(answer, f"{how} {path}")
        found.raise_for_status()
        return found

    def deployment(self, name: str) -> dict[str, Any]:
        return self.find("deployments", deployments={"name": {"any_": [name]}})[0]

    def pause(self, name: str) -> None:
        """As Prefect's page does it."""
        about = self.deployment(name)
        for schedule in about["schedules"]:
            self.ask("PATCH", f"deployments/{about['id']}/schedules/{schedule['id']}", {"active": False})

    def under_way(self) -> list[str]:
        """Names of the pipeline's flow runs that are begun and not ended."""
        found = self.find("flow_runs", flows={"name": {"any_": ["pipeline"]}})
        return [each["name"] for each in found if each["state_type"] in ("PENDING", "RUNNING")]

    def runs(self, rounds: int) -> list[Path]:
        """Folders of runs with so many rounds."""
        found = sorted(self.folder.glob("runs/*/settings.yaml"))
        return [path.parent for path in found if yaml.safe_load(path.read_text())["rounds"] == rounds]


def events(run: Path) -> list[str]:
    path = run / "events.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("user"))
    try:
        eventually(one.started, "shoal serve")
        yield one
    finally:
        one.stop()


def test_deployments_run_in_place_and_go_on_after_a_kill(served: Served) -> None:
    # One on demand, with other parameters than the deployment's.
    other = json.dumps({**TINY, "method": {"name": "fedcc"}, "rounds": 2})
    asked = served.prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={other}")
    assert asked.returncode == 0, asked.stdout + asked.stderr

    # One by its cron; its process is killed in the middle of the rounds.
    (scheduled,) = eventually(lambda: served.runs(15), "a run by cron", 0.1)
    served.pause("every-minute")
    eventually(lambda: events(scheduled).count("round_finished") >= 2, "two rounds", 0.05)
    os.kill(json.loads((scheduled / "status.json").read_text())["pid"], signal.SIGKILL)
    assert events(scheduled).count("round_finished") < 15

    # The next firing goes on from it, in the same folder.
    again = served.prefect("deployment", "run", "pipeline/every-minute")
    assert again.returncode == 0, again.stdout + again.stderr
    eventually(lambda: "pipeline_ended" in events(scheduled), "the end of the killed run")
    (demanded,) = served.runs(2)
    eventually(lambda: "pipeline_ended" in events(demanded), "the end of the run on demand")
    # A firing that was on its way when the schedule was paused finds nothing unfinished, and begins a run of its own.
    eventually(lambda: not served.under_way(), "the end of every firing")
    others = [run for run in served.runs(15) if run != scheduled]
    for run in others:
        eventually(lambda run=run: "pipeline_ended" in events(run), "the end of a firing that was on its way")
        assert "resumed" not in events(run)
    assert events(scheduled).count("started") == events(scheduled).count("resumed") == 1
    assert events(scheduled).count("round_finished") == 15

    # Both are in the clone's MLflow store with all of their lineage, and Prefect's database is beside it.
    with sqlite3.connect(served.folder / "mlflow" / "mlflow.db") as store:
        rows = store.execute("select run_uuid, key, value from tags").fetchall()
        states = dict(store.execute("select run_uuid, status from runs").fetchall())
    by_run = {value: run for run, key, value in rows if key == "shoal.run"}
    assert set(by_run) == {run.name for run in (scheduled, demanded, *others)}
    for run in (scheduled, demanded):
        tags = {key: value for run_id, key, value in rows if run_id == by_run[run.name]}
        lineage = json.loads((run / "lineage.json").read_text())
        assert states[by_run[run.name]] == "FINISHED"
        assert tags["shoal.run_folder"] == f"runs/{run.name}"
        assert tags["shoal.data_sha256"] == lineage["data"]["digest"]
        assert tags["shoal.data_dvc"] == lineage["data"]["dvc"]
        assert tags["shoal.partition_sha256"] == lineage["partition"]["digest"]
        assert tags["shoal.partition_dvc"] == lineage["partition"]["dvc"]
        assert tags["shoal.settings_sha256"] == lineage["settings_sha256"]
        assert tags["shoal.git_commit"] == served.commit == lineage["git"]["commit"]
        assert tags["shoal.prefect_flow_run"]
    assert (served.folder / ".prefect" / "prefect.db").exists()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=served.folder, capture_output=True, text=True)
    assert changed.stdout == ""

    # The pipeline's own flow runs show the result, and a link to the run in MLflow's page.
    def completed() -> list[dict[str, Any]]:
        found = served.find("flow_runs", flows={"name": {"any_": ["pipeline"]}})
        return [each for each in found if each["state_type"] == "COMPLETED"]

    worked = eventually(lambda: len(completed()) == 2 + len(others) and completed(), "completed flow runs")
    assert {each["deployment_id"] for each in worked} == {
        served.deployment(name)["id"] for name in ("every-minute", "on-demand")
    }
    for each in worked:
        found = served.find("artifacts", artifacts={"flow_run_id": {"any_": [each["id"]]}})
        shown = {artifact["type"]: artifact["data"] for artifact in found}
        assert set(shown) == {"table", "markdown"}
        (run,) = (run for run in (scheduled, demanded, *others) if str(run) in shown["table"])
        assert f"{served.page}/#/experiments/1/runs/{by_run[run.name]}?" in shown["markdown"]

    # The killed flow runs are not shown as running for ever.
    every = served.find("flow_runs")
    assert not [each["name"] for each in every if each["state_type"] == "RUNNING"]
    assert sorted(each["state_type"] for each in every if each["name"].startswith(f"federate {scheduled.name}")) == [
        "COMPLETED",
        "CRASHED",
    ]


def test_prefects_commands_answer(served: Served) -> None:
    listed = served.prefect("deployment", "ls")
    assert listed.returncode == 0, listed.stderr
    assert all(name in listed.stdout for name in ("nightly/nightly", "pipeline/on-demand", "pipeline/every-minute"))
    runs = served.find("flow_runs", flow_runs={"name": {"like_": "federate"}}) or served.find("flow_runs")
    for words in (
        ("deployment", "inspect", "nightly/nightly"),
        ("flow-run", "ls"),
        ("flow-run", "logs", runs[0]["id"]),
        ("automation", "ls"),
    ):
        done = served.prefect(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr


def test_wrong_settings_are_refused_before_anything_runs(served: Served) -> None:
    before = len(served.find("flow_runs"))
    for settings, named in (({"rounds": -3}, "settings.rounds"), ({"method": {"name": "fedpmp"}}, "settings.method")):
        done = served.prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={json.dumps(settings)}")
        assert done.returncode != 0
        assert named in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    assert len(served.find("flow_runs")) == before


def test_serve_tells_what_comes_up_and_where(served: Served) -> None:
    text = "".join(served.lines)
    parts = (
        "starting",
        "Prefect's server is up",
        "deployments are registered",
        "MLflow is up",
        "the worker is started",
    )
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    assert f"{served.page}/#/experiments/1/runs?workflowType=machine_learning" in text
    asked = requests.get(f"{served.page}/api/2.0/mlflow/experiments/get", params={"experiment_id": "1"}, timeout=60)
    experiment = asked.json()["experiment"]
    assert experiment["name"] == "shoal"
    assert experiment["artifact_location"] == (served.folder / "mlflow" / "artifacts" / "shoal").as_uri()


def test_serve_says_first_what_is_missing(served: Served, tmp_path: Path) -> None:
    def serve(folder: Path) -> str:
        ports = ("--port", str(served.port), "--mlflow-port", str(free_port()))
        done = subprocess.run(
            [BIN / "shoal", "serve", *ports], cwd=folder, env=served.env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1
        return done.stderr

    assert "no prefect.yaml" in serve(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert f"port {served.port}" in serve(served.folder)


def test_what_is_open_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER_AUTH, raising=False)
    for near in ("127.0.0.1", "127.0.0.9", "::1"):
        assert what_is_open(near, 4200, 5000) == []
    said = "\n".join(what_is_open("0.0.0.0", 4200, 5000))
    assert "open on 0.0.0.0, port 4200 (Prefect): WITHOUT A PASSWORD: whoever reaches it runs any code here" in said
    assert f"set {SERVER_AUTH}=user:password" in said
    assert "port 5000 (MLflow): WITHOUT A PASSWORD" in said
    page = (ROOT / "docs" / "operations.md").read_text()
    assert "**On other addresses.**" in page
    assert "On other addresses" in said
    monkeypatch.setenv(SERVER_AUTH, "me:word")
    said = "\n".join(what_is_open("host.example.org", 4200, None))
    assert "whoever has the password runs any code here" in said
    assert "MLflow" not in said
    assert "word" not in said.replace("password", "")


@pytest.mark.slow
def test_served_with_a_password_on_all_addresses(tmp_path: Path) -> None:
    """As docs/operations.md says: Prefect asks for the password, and worker and deployments have it."""
    folder = clone(tmp_path / "clone")
    port, mlflow_port = free_port(), free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env |= {"HOME": str(tmp_path), "DO_NOT_TRACK": "1", SERVER_AUTH: "me:Tr0ub4dor"}
    words = ("--port", str(port), "--mlflow-port", str(mlflow_port), "--host", "0.0.0.0")
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([BIN / "shoal", "serve", *words], cwd=folder, env=env, stdout=out, stderr=out)
    try:

        def started() -> bool:
            assert process.poll() is None, (tmp_path / "out").read_text()
            return "Ctrl-C" in (tmp_path / "out").read_text()

        def answer(url: str) -> Any:
            """None where it has none: its database is busy for a minute now and then."""
            said = requests.post(url, json={}, timeout=60, auth=("me", "Tr0ub4dor"))
            return said.json() if said.status_code != 503 else None

        eventually(started, "shoal serve")
        said = (tmp_path / "out").read_text()
        assert f"open on 0.0.0.0, port {port} (Prefect): whoever has the password" in said
        assert "Tr0ub4dor" not in said
        url = f"http://127.0.0.1:{port}/api/deployments/filter"
        assert requests.post(url, json={}, timeout=60).status_code == 401
        assert requests.post(url, json={}, timeout=60, auth=("me", "wrong")).status_code == 401
        found = eventually(lambda: answer(url), "the deployments")
        assert {each["name"] for each in found} == {"nightly", "on-demand", "search", "tell"}
        pool = f"http://127.0.0.1:{port}/api/work_pools/shoal/workers/filter"
        workers = eventually(lambda: answer(pool), "the worker's heartbeat")
        assert workers[0]["status"] == "ONLINE"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def test_a_password_stays_out_of_the_pool_and_of_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a work pool are kept and shown by Prefect; the worker has the real address."""
    pools: list[dict[str, Any]] = []
    started: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    class Ended(Exception):
        pass

    def note(log: Path, *words: str, env: Any = None) -> Any:
        started.append((words, dict(env or {})))
        if "worker" in words:
            raise Ended
        return subprocess.Popen(["sleep", "60"], start_new_session=True)

    shutil.copy(ROOT / "prefect.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.delenv("SHOAL_DATA_MIRROR", raising=False)
    for name in ("PREFECT_API_URL", "PREFECT_WORKER_QUERY_SECONDS", "PREFECT_CLIENT_MAX_RETRIES", "PREFECT_HOME"):
        monkeypatch.setenv(name, os.environ.get(name, "2"))  # what serving sets is taken back
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / ".prefect"))
    monkeypatch.setenv(RETRIES, "2")
    monkeypatch.setattr(serving, "start", note)
    monkeypatch.setattr(serving, "wait_for", lambda *_: None)
    monkeypatch.setattr(serving, "make_pool", lambda api, variables, prefect: pools.append(variables))
    monkeypatch.setattr(serving, "register", lambda *_, **__: [])
    monkeypatch.setattr(serving, "experiment_id", lambda page: "1")
    for address in ("https://me:Tr0ub4dor@host", "postgresql://me:Tr0ub4dor@host/db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with (tmp_path / "told").open("w") as told, pytest.raises(Ended):
            serving.serve(free_port(), free_port(), Console(file=told, width=300))
        assert "Tr0ub4dor" not in json.dumps(pools) + (tmp_path / "told").read_text()
        assert not any("Tr0ub4dor" in word for words, _ in started for word in words)
        assert started[-1][1]["MLFLOW_TRACKING_URI"] == address
    assert any(env.get("MLFLOW_BACKEND_STORE_URI") == "postgresql://me:Tr0ub4dor@host/db" for _, env in started)
    assert pools[-1][RETRIES] == started[-1][1][RETRIES] == "2"  # as the user has it
    monkeypatch.delenv(RETRIES)
    with pytest.raises(Ended):
        serving.serve(free_port(), free_port(), Console(file=io.StringIO()))
    assert pools[-1][RETRIES] == JOB_RETRIES  # a job can do without Prefect
    assert started[-1][1][RETRIES] is None  # registering and the worker cannot: Prefect's own patience
    assert RETRIES not in os.environ
