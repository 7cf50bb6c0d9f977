"""`shoal serve` as a user has it: a clone in a folder of its own, no variable of Shoal's, no activated environment."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prefect as prefect_package
import psutil
import pytest
import requests
from rich.console import Console

from shoal.serving import serve as serving
from shoal.serving.deployments import end_left_over
from shoal.serving.serve import (
    CLIENT_AUTH,
    JOB_RETRIES,
    RETRIES,
    SERVER_AUTH,
    ServeError,
    exposure_warnings,
    plan_service,
)
from tests.flows.test_prefect import free_port
from tests.serving import attack
from tests.serving.served import BIN, OURS, PATIENCE, ROOT, TINY, Served, clone, csrf_headers, eventually

pytestmark = pytest.mark.long


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


def tags_of(store: Path) -> dict[str, dict[str, str]]:
    """The tags of each run of an MLflow database, with its status and its id, by the name of Shoal's run."""
    with sqlite3.connect(store) as database:
        rows = database.execute("select run_uuid, key, value from tags").fetchall()
        states = database.execute("select run_uuid, status from runs").fetchall()
    found = {run: {"status": status, "id": run} for run, status in states}
    for run, key, value in rows:
        found[run][key] = value
    return {tags["shoal.run"]: tags for tags in found.values() if "shoal.run" in tags}


def check_lineage(served: Served, run: Path, tags: dict[str, str]) -> None:
    """Check that a run is in the clone's MLflow store with all of its lineage."""
    lineage = json.loads((run / "lineage.json").read_text())
    assert tags["status"] == "FINISHED"
    assert tags["shoal.run_folder"] == f"runs/{run.name}"
    assert tags["shoal.data_sha256"] == lineage["data"]["digest"]
    assert tags["shoal.data_dvc"] == lineage["data"]["dvc"]
    assert tags["shoal.partition_sha256"] == lineage["partition"]["digest"]
    assert tags["shoal.partition_dvc"] == lineage["partition"]["dvc"]
    assert tags["shoal.settings_sha256"] == lineage["settings_sha256"]
    assert tags["shoal.git_commit"] == served.commit == lineage["git"]["commit"]
    assert tags["shoal.prefect_flow_run"]


def check_flow_runs(served: Served, runs: list[Path], mlflow_ids: dict[str, str]) -> None:
    """Check that the pipeline's own flow runs show the result, and a link to the run in MLflow's page."""

    def completed() -> list[dict[str, Any]]:
        found = served.find("flow_runs", flows={"name": {"any_": ["pipeline"]}})
        return [each for each in found if each["state_type"] == "COMPLETED"]

    worked = eventually(lambda: len(completed()) == len(runs) and completed(), "completed flow runs")
    assert {each["deployment_id"] for each in worked} == {
        served.deployment(name)["id"] for name in ("every-minute", "on-demand")
    }
    for each in worked:
        found = served.find("artifacts", artifacts={"flow_run_id": {"any_": [each["id"]]}})
        shown = {artifact["type"]: artifact["data"] for artifact in found}
        assert set(shown) == {"table", "markdown"}
        values = {value for row in json.loads(shown["table"]) for value in row.values()}
        (run,) = (run for run in runs if str(run) in values)
        assert f"{served.page}/#/runs/{mlflow_ids[run.name]}" in shown["markdown"]


@pytest.mark.slow
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

    # Both are in the clone's MLflow store, and Prefect's database is beside it.
    runs = [scheduled, demanded, *others]
    tags = tags_of(served.folder / "mlflow" / "mlflow.db")
    assert set(tags) == {run.name for run in runs}
    for run in (scheduled, demanded):
        check_lineage(served, run, tags[run.name])
    assert (served.folder / ".prefect" / "prefect.db").exists()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=served.folder, capture_output=True, text=True)
    assert changed.stdout == ""
    check_flow_runs(served, runs, {name: each["id"] for name, each in tags.items()})

    # The killed flow runs are not shown as running for ever.
    every = served.find("flow_runs")
    assert not [each["name"] for each in every if each["state_type"] == "RUNNING"]
    deployment = served.deployment("every-minute")["id"]
    states = Counter(each["state_type"] for each in every if each["deployment_id"] == deployment)
    assert states["CRASHED"] == 1, states
    assert states["COMPLETED"] == 1 + len(others), states


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
    # Other deployments' schedules add runs at any time.
    asked = {"deployments": {"name": {"any_": ["on-demand"]}}}
    before = len(served.find("flow_runs", **asked))
    for settings, named in (({"rounds": -3}, "settings.rounds"), ({"method": {"name": "fedpmp"}}, "settings.method")):
        done = served.prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={json.dumps(settings)}")
        assert done.returncode != 0
        assert named in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    assert len(served.find("flow_runs", **asked)) == before


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
    view = "#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=shoal"
    assert f"{served.page}/{view}\n" in text
    url = f"{served.page}/api/2.0/mlflow/experiments/get"
    asked = requests.get(url, params={"experiment_id": "1"}, timeout=60, auth=served.login)
    experiment = asked.json()["experiment"]
    assert experiment["name"] == "shoal"
    assert "mlflow.sharedViewState.shoal" in {tag["key"] for tag in experiment["tags"]}, "the view of the link"
    assert experiment["artifact_location"] == (served.folder / "mlflow" / "artifacts" / "shoal").as_uri()
    # The password goes to a terminal, or into a file that only the user can read, and nowhere else.
    user, password = served.login
    assert password not in text
    links = served.folder / "runs" / ".serve" / "links.txt"
    assert links.stat().st_mode & 0o777 == 0o600
    assert f"{links}" in text
    assert links.read_text().splitlines() == [
        f"Prefect: http://127.0.0.1:{served.port}/shoal-login#{user}:{password}",
        f"MLflow: http://{user}:{password}@127.0.0.1:{served.mlflow_port}/shoal-login{view}",
    ]
    for path in links.parent.iterdir():
        assert path == links or password not in path.read_text(), path
    for process in psutil.process_iter(["cmdline"]):
        assert password not in " ".join(process.info["cmdline"] or []), process


def test_a_browser_is_logged_in_by_the_links(served: Served) -> None:
    """What the links open; that a browser is logged in by them was seen in one."""
    session = requests.Session()
    prefect = session.get(f"http://127.0.0.1:{served.port}/shoal-login", timeout=60).text
    assert 'localStorage.setItem("prefect-password", btoa(login))' in prefect
    (bundle,) = {
        each.read_text() for each in Path(prefect_package.__file__).parent.glob("server/ui/assets/usePrefectApi-*.js")
    }
    assert "prefect-password" in bundle, "Prefect's page keeps the password somewhere else"
    user, password = served.login
    mlflow = session.get(f"http://{user}:{password}@127.0.0.1:{served.mlflow_port}/shoal-login", timeout=60)
    assert 'location.replace(location.origin + "/" + location.hash)' in mlflow.text
    about = session.get(f"http://127.0.0.1:{served.port}/ui-settings", timeout=60).json()
    assert about["auth"] == "BASIC"
    assert about["csrf_enabled"] is True
    assert about["api_url"] == "/api"


def test_no_other_page_and_no_other_user_controls_a_server(served: Served, tmp_path: Path) -> None:
    open_ports = attack.listening(served.process.pid)
    assert {host for host, _ in open_ports} == {"127.0.0.1"}
    pages = {served.port, served.mlflow_port}
    assert pages <= {port for _, port in open_ports}
    # Prefect's worker talks to its jobs, which know a secret, over a port of its own; a browser it does not answer.
    assert not [port for _, port in open_ports if port not in pages and attack.answers(port)]
    before = attack.state(served)
    assert attack.got_through(attack.on_prefect(served)) == []
    assert attack.got_through(attack.on_mlflow(served)) == []
    assert attack.got_through(attack.by_websocket(served)) == []
    assert attack.state(served) == before
    # Even with the password nobody names a program, or a file, for the flow to use.
    attack.start_a_program(served, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_flow_runs_without_a_process_are_no_longer_running(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLIENT_AUTH, ":".join(served.login))
    deployment = served.deployment("on-demand")["id"]
    ended = subprocess.Popen(["true"])
    ended.wait()
    runs = {}
    for name, process in {"gone": ended.pid, "here": os.getpid()}.items():
        body = {"name": name, "state": {"type": "RUNNING", "name": "Running"}}
        runs[name] = served.ask("POST", f"deployments/{deployment}/create_flow_run", body).json()["id"]
        served.ask("PATCH", f"flow_runs/{runs[name]}", {"infrastructure_pid": str(process)})
    ended_now = end_left_over(served.api)
    assert "gone" in ended_now
    assert "here" not in ended_now
    states = {each["name"]: each["state_type"] for each in served.find("flow_runs") if each["id"] in runs.values()}
    assert states == {"gone": "CRASHED", "here": "RUNNING"}
    for run in runs.values():
        served.ask("DELETE", f"flow_runs/{run}", {})


@pytest.mark.slow
def test_a_run_that_ends_with_the_service_goes_on_after_the_next_start(served: Served) -> None:
    settings = json.dumps({**TINY, "rounds": 14})
    begun = served.prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={settings}")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    (run,) = eventually(lambda: served.runs(14), "a run", 0.1)
    eventually(lambda: events(run).count("round_finished") >= 2, "two rounds", 0.05)
    served.stop()
    assert events(run).count("round_finished") < 14
    served.start()
    eventually(served.started, "shoal serve")
    assert any("had ended together with the service" in line for line in served.lines), served.lines
    assert not served.under_way()
    again = served.prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={settings}")
    assert again.returncode == 0, again.stdout + again.stderr
    eventually(lambda: "pipeline_ended" in events(run), "the end of the run that was cut short")
    assert events(run).count("resumed") == 1

    def states() -> Counter[str]:
        return Counter(each["state_type"] for each in served.find("flow_runs") if each["name"].startswith("fedpnp"))

    # The flow run ends a moment after its run's last event.
    eventually(lambda: "RUNNING" not in states(), f"the end of all flow runs: {states()}")


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


def test_what_is_open_is_said() -> None:
    for near in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert exposure_warnings(near, 4200, 5000) == []
    said = "\n".join(exposure_warnings("0.0.0.0", 4200, 5000))
    assert "open on 0.0.0.0, port 4200 (Prefect) and 5000 (MLflow): everybody with the password can" in said
    page = (ROOT / "docs" / "prefect.md").read_text()
    assert "## On other addresses" in page
    assert "On other addresses" in said
    assert "MLflow" not in "\n".join(exposure_warnings("host.example.org", 4200, None))
    with pytest.raises(ServeError, match="--host ::1 cannot be listened on"):
        plan_service("::1", 4200, 5000)


@pytest.mark.slow
def test_served_with_a_password_on_all_addresses(tmp_path: Path) -> None:
    """As docs/prefect.md says: Prefect asks for the password, and worker and deployments have it."""
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
            with requests.Session() as session:
                session.auth = ("me", "Tr0ub4dor")
                try:
                    said = session.post(url, json={}, timeout=60, headers=csrf_headers(session, url))
                except requests.HTTPError:
                    return None
            return said.json() if said.status_code != 503 else None

        eventually(started, "shoal serve")
        said = (tmp_path / "out").read_text()
        assert f"open on 0.0.0.0, port {port} (Prefect)" in said
        assert "Tr0ub4dor" not in said
        assert f'{CLIENT_AUTH}="${SERVER_AUTH}"' in said
        url = f"http://127.0.0.1:{port}/api/deployments/filter"
        assert requests.post(url, json={}, timeout=60).status_code == 403
        assert requests.post(url, json={}, timeout=60, auth=("me", "wrong")).status_code == 403  # no token of its own
        assert requests.get(f"http://127.0.0.1:{port}/api/flows/1", timeout=60, auth=("me", "wrong")).status_code == 401
        found = eventually(lambda: answer(url), "the deployments")
        assert {each["name"] for each in found} == {"nightly", "on-demand", "search", "tell", "assign"}
        pool = f"http://127.0.0.1:{port}/api/work_pools/shoal/workers/filter"
        workers = eventually(lambda: answer(pool), "the worker's heartbeat")
        assert workers[0]["status"] == "ONLINE"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    assert "all of it has ended" in (tmp_path / "out").read_text()


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
    names = (
        "PREFECT_API_URL",
        "PREFECT_WORKER_QUERY_SECONDS",
        "PREFECT_CLIENT_MAX_RETRIES",
        "PREFECT_HOME",
        CLIENT_AUTH,
    )
    for name in names:
        monkeypatch.setenv(name, os.environ.get(name, "2"))  # what serving sets is taken back
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / ".prefect"))
    monkeypatch.setenv(RETRIES, "2")
    monkeypatch.setattr(serving, "start", note)
    monkeypatch.setattr(serving, "wait_for", lambda *_: None)
    monkeypatch.setattr(serving, "make_pool", lambda api, variables, prefect: pools.append(variables))
    monkeypatch.setattr(serving, "register", lambda *_, **__: [])
    monkeypatch.setattr(serving, "end_left_over", lambda api: [])
    monkeypatch.setattr(serving, "experiment_id", lambda service: "1")
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
