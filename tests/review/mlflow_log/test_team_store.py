"""Shoal on a team's servers: MLflow on PostgreSQL and an object store, Prefect on PostgreSQL, workers that join."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import requests
import torch

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.checkpoint import newest_valid
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FINISHED
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.experiments import experiment_of
from shoal.review.mlflow_log.run_names import title
from tests.conftest import SMALL
from tests.flows.test_prefect import free_port
from tests.review.mlflow_log.test_tracking_server import all_files
from tests.runs import numbers
from tests.serving.served import BIN, clone, commit, csrf_headers
from tests.team import (
    ADMINISTRATOR,
    SECRETS,
    Program,
    Team,
    eventually,
    plain_environment,
    postgres_programs,
    team,
)

pytestmark = pytest.mark.slow
WORD = "tracking-address-word"
"""The password in the address that runs log to."""
USER = "shoal"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with team(tmp_path_factory.mktemp("team"), free_port) as found:
        yield found


@pytest.fixture
def at_team(servers: Team, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    """A home whose runs may log to the team."""
    monkeypatch.setenv("TEAM_WORD", WORD)
    for name, value in servers.mlflow_login().items():
        monkeypatch.setenv(name, value)
    mlflow.set_tracking_uri(servers.mlflow)
    del os.environ["MLFLOW_TRACKING_URI"]  # MLflow sets it too; a patch would set it again at the end
    yield servers
    mlflow.set_tracking_uri(None)


def address(servers: Team) -> str:
    return servers.mlflow.replace("http://", f"http://{USER}:${{TEAM_WORD}}@")


def settings_at(servers: Team, **changes: Any) -> Any:
    on = {"mlflow": True, "uri": address(servers)}
    return make_settings(merge(SMALL, {"tracking": on}, changes))


def told(run: RunFolder) -> list[str]:
    return [event.kind for event in run.events()]


def mlflow_has_all_of(run: RunFolder) -> Any:
    """The MLflow run of a run folder, whose rounds are there, each once."""
    client = mlflow.MlflowClient()
    found = client.get_run(run.status().tracking.mlflow_run)
    rounds = run.table("rounds")
    history = client.get_metric_history(found.info.run_id, "score/acc")
    assert [(m.step, m.value) for m in history] == list(zip(rounds["round"], rounds["acc"], strict=True))
    assert found.info.status == "FINISHED"
    return found


def predicted(run: RunFolder, images: np.ndarray) -> Any:
    """What the model in the run's folder says of images."""
    checkpoint = newest_valid(run)
    assert checkpoint is not None
    return OpenedRun(run).method.predictor(checkpoint.judged)(torch.from_numpy(images.astype("float32")) / 255)


def test_what_a_run_leaves_is_in_the_database_and_the_object_store(at_team: Team, capfd: Any) -> None:
    run = new_run(settings_at(at_team, checkpoint={"keep": 3}, tracking={"checkpoints": "all"}))
    drive(run)
    assert "mlflow_incomplete" not in told(run)
    said = capfd.readouterr()
    assert not said.out, "standard output may be for JSON alone"
    assert WORD not in said.err
    found = mlflow_has_all_of(run)
    client = mlflow.MlflowClient()

    # Numbers are rows of PostgreSQL's.
    rows = at_team.query("mlflow", f"select step, value from metrics where run_uuid = '{found.info.run_id}' "
                         "and key = 'score/acc' order by step")  # fmt: skip
    assert [value for _, value in rows] == run.table("rounds")["acc"].tolist()
    assert found.data.params["data.name"] == "digits"

    # Files and models are objects, and none lies on a disk of this machine.
    assert found.info.artifact_uri.startswith("mlflow-artifacts:/")
    kept = at_team.objects_in(f"mlflow/{found.info.experiment_id}/")
    own = {name.split("/artifacts/")[1]: data for name, data in kept.items() if found.info.run_id in name}
    assert sorted(own) == all_files(client, found.info.run_id)
    for name in ("settings.yaml", "rounds.parquet", "clusters.parquet"):
        assert own[name] == (run.path / name).read_bytes(), name
    assert own["Report.html"] == (run.path / "report.html").read_bytes()
    states = [(run.rounds / f"{round:04d}" / "server.safetensors").read_bytes() for round in (1, 2, 3)]
    assert all(state in kept.values() for state in states)
    assert not list(at_team.folder.rglob("*.safetensors"))
    assert not (run.path.parents[1] / "mlflow").exists(), "no store of this machine's"

    # The registered model comes back from there, and says what the one in the run's folder says.
    images = np.array(open_prepared(run.folder_of("data")).test_x[:40])
    served = mlflow.pyfunc.load_model("models:/shoal-fedpnp-digits@champion").predict(images)
    here = predicted(run, images)
    assert served["cluster"].tolist() == here.cluster.tolist()
    assert served["soft"].tolist() == here.soft.tolist()

    # Once more, and nothing is there twice.
    def there() -> tuple[list[str], list[tuple[Any, ...]]]:
        return sorted(at_team.objects_in()), at_team.query("mlflow", "select count(*) from metrics")

    before = there()
    drive(run)
    assert there() == before


def test_a_server_that_is_killed_in_the_middle_costs_nothing(at_team: Team) -> None:
    straight = new_run(make_settings(merge(SMALL, {"seed": 7, "rounds": 4})))
    drive(straight)

    run = new_run(settings_at(at_team, seed=7, rounds=4))

    def kill(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 2:
            at_team.mlflow_server.kill()

    try:
        result = drive(run, observers=[kill])
    finally:
        if at_team.mlflow_server.process.poll() is not None:
            at_team.mlflow_server = at_team.start_mlflow()
    assert result.status == FINISHED
    assert numbers(run)[0] == numbers(straight)[0]
    assert "mlflow_incomplete" in told(run)
    (said,) = {event.message.split(" (")[0] for event in run.events() if event.kind == "mlflow_incomplete"}
    assert said == f"MLflow at {address(at_team)} does not have all of the run"

    done = shoal(run.path.parents[1], "model", "log", run.name)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stdout
    found = mlflow_has_all_of(run)
    assert "Report.html" in all_files(mlflow.MlflowClient(), found.info.run_id)


def shoal(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    login = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": WORD}
    given = {**plain_environment(), "SHOAL_HOME": str(home), "TEAM_WORD": WORD, **login, **env}
    return subprocess.run([BIN / "shoal", *words], cwd=home, env=given, capture_output=True, text=True, timeout=240)


def test_runs_move_from_the_embedded_store_to_the_teams(at_team: Team) -> None:
    on = {"tracking": {"mlflow": True}, "rounds": 1, "method": {"name": "fedcc"}}
    runs = [new_run(make_settings(merge(SMALL, on, {"seed": seed}))) for seed in (0, 1)]
    for run in runs:
        drive(run)
        assert run.status().tracking.mlflow_uri.startswith("sqlite:///")
    aside = new_run(make_settings(merge(SMALL, {"rounds": 1})))
    drive(aside)
    home = runs[0].path.parents[1]
    for _ in range(2):
        moved = shoal(home, "model", "log", MLFLOW_TRACKING_URI=at_team.mlflow)
        assert moved.returncode == 0, moved.stderr
        lines = moved.stdout.splitlines()
        assert [line.split(":")[0] for line in lines] == [run.name for run in (*runs, aside)]
        assert lines[1].endswith(f"logged to {at_team.mlflow}, version 2 of its model")
        assert lines[2].endswith("its setting tracking.mlflow is false")
    for run in runs:
        assert run.status().tracking.mlflow_uri == at_team.mlflow
        mlflow_has_all_of(run)
    aliases = mlflow.MlflowClient().get_registered_model("shoal-fedcc-digits").aliases
    assert {name: str(version) for name, version in aliases.items()} == {
        "champion": "1",
        "challenger": "2",
    }


def test_a_database_without_a_server_has_its_files_beside_the_embedded_store(
    servers: Team, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_WORD", SECRETS["MLFLOW_DATABASE_PASSWORD"])
    uri = f"postgresql://mlflow:${{TEAM_WORD}}@127.0.0.1:{servers.database}/mlflow"
    on = {"mlflow": True, "uri": uri, "experiment": "direct"}
    run = new_run(make_settings(merge(SMALL, {"tracking": on, "rounds": 1})))
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    drive(run)
    assert "mlflow_incomplete" not in told(run)
    found = mlflow.MlflowClient(uri.replace("${TEAM_WORD}", SECRETS["MLFLOW_DATABASE_PASSWORD"])).get_run(
        run.status().tracking.mlflow_run
    )
    assert found.info.artifact_uri.startswith((home / "mlflow" / "artifacts" / "direct").as_uri())
    assert not list(elsewhere.iterdir())
    no_secret_in(run.path)


def test_the_longest_names_fit_into_the_tables(at_team: Team) -> None:
    column = "c" * 300
    settings = make_settings(merge(SMALL, {"partition": {"kind": "by_column", "column": column, "clients": None}}))
    client = mlflow.MlflowClient()
    made = client.create_run(experiment_of(client, "names"), run_name=title(settings))
    assert client.get_run(made.info.run_id).info.run_name == title(settings)


def test_a_worker_of_another_process_runs_a_deployment(at_team: Team, tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone")
    made_from = commit(folder)
    shared = tmp_path / "shared"
    shared.mkdir()
    user = {"PREFECT_API_URL": at_team.prefect, "PREFECT_API_AUTH_STRING": SECRETS["PREFECT_AUTH"], "COLUMNS": "300"}

    def prefect(*words: str) -> None:
        env = {**plain_environment(), **user, "PREFECT_HOME": str(tmp_path / "user")}
        done = subprocess.run([BIN / "prefect", *words], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "shoal", "--type", "process")
    prefect("--no-prompt", "deploy", "--name", "on-demand")
    worker = Program(
        at_team.folder / "worker.log",
        [BIN / "prefect", "worker", "start", "--pool", "shoal", "--type", "process", "--limit", "1"],
        {
            **user,
            "PREFECT_HOME": str(tmp_path / "worker"),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "SHOAL_HOME": str(shared),
            "TEAM_WORD": WORD,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        },
        None,
        cwd=folder,
    )
    try:
        wanted = settings_at(at_team, seed=3, tracking={"prefect": "auto"})
        prefect("deployment", "run", "pipeline/on-demand", "--param", f"settings={json.dumps(wanted.to_json())}")

        def over() -> Any:
            assert worker.process.poll() is None, worker.log.read_text()[-3000:]
            with requests.Session() as session:
                session.auth = at_team.prefect_login()
                url = f"{at_team.prefect}/flow_runs/filter"
                body = {"flows": {"name": {"any_": ["pipeline"]}}}
                asked = session.post(url, json=body, headers=csrf_headers(session, url), timeout=30).json()
            return [each for each in asked if each["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]

        (ended,) = eventually(over, "the pipeline")
    finally:
        worker.kill()
    assert ended["state_type"] == "COMPLETED", worker.log.read_text()[-3000:]

    (path,) = (shared / "runs").glob("2*")
    run = RunFolder(path)
    assert run.status().state == FINISHED
    assert run.lineage().shoal.git.commit == made_from
    found = mlflow_has_all_of(run)
    federated = found.data.tags["shoal.prefect_flow_run"]
    assert at_team.query("prefect", f"select state_type::text from flow_run where id = '{federated}'") == [
        ("COMPLETED",)
    ]
    (parameters,) = at_team.query("prefect", f"select parameters::text from flow_run where id = '{ended['id']}'")
    assert "${TEAM_WORD}" in parameters[0], "the name of the variable, and not what it holds"
    no_secret_in(shared)


def no_secret_in(folder: Path) -> None:
    """No file below a folder holds a password."""
    words = [word.encode() for word in secret_words()]
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [word for word in words if word in data], path


def secret_words() -> list[str]:
    whole = [WORD, *SECRETS.values(), SECRETS["PREFECT_AUTH"].partition(":")[2]]
    return [word for word in whole if word != SECRETS["AWS_ACCESS_KEY_ID"]]


def test_a_database_and_a_bucket_come_back_from_their_copies(at_team: Team, tmp_path: Path) -> None:
    run = new_run(settings_at(at_team, rounds=1, seed=5))
    drive(run)
    images = np.array(open_prepared(run.folder_of("data")).test_x[:20])
    (version,) = mlflow.MlflowClient().search_model_versions(f"run_id = '{run.status().tracking.mlflow_run}'")

    (tmp_path / "mlflow.dump").write_bytes(postgres_tool(at_team, "pg_dump", "--format=custom", "mlflow"))
    copies = at_team.objects_in()
    at_team.mlflow_server.kill()
    try:
        postgres_tool(at_team, "psql", "--dbname", "mlflow", "--command", "truncate runs, registered_models cascade")
        assert at_team.query("mlflow", "select count(*) from runs") == [(0,)]
        at_team.put_objects(dict.fromkeys(copies, b""))
        back = ("--clean", "--if-exists", "--dbname", "mlflow", str(tmp_path / "mlflow.dump"))
        postgres_tool(at_team, "pg_restore", *back)
        at_team.put_objects(copies)
    finally:
        at_team.mlflow_server = at_team.start_mlflow()
    mlflow_has_all_of(run)
    served = mlflow.pyfunc.load_model(f"models:/{version.name}/{version.version}").predict(images)
    assert served["soft"].tolist() == predicted(run, images).soft.tolist()


def test_no_password_is_anywhere_in_the_end(at_team: Team) -> None:
    # After all that was done above: databases, objects, and what servers and workers printed.
    run = new_run(settings_at(at_team, rounds=1, seed=11))
    drive(run)
    no_secret_in(run.path)
    no_secret_in(at_team.folder)
    for name in ("mlflow", "prefect"):
        text = dumped(at_team, name)
        assert "CREATE TABLE" in text
        assert not [word for word in secret_words() if word in text], name
    kept = at_team.objects_in()
    assert len(kept) > 10
    assert not [name for name, data in kept.items() if any(word.encode() in data for word in secret_words())]


def dumped(servers: Team, database: str) -> str:
    """A database as text."""
    return postgres_tool(servers, "pg_dump", database).decode()


def postgres_tool(servers: Team, name: str, *words: str) -> bytes:
    """What one of PostgreSQL's programs says to its own user."""
    env = {"PGPASSWORD": ADMINISTRATOR, "PATH": os.environ["PATH"]}
    where = ["--host", "127.0.0.1", "--port", str(servers.database), "--username", "postgres"]
    done = subprocess.run([postgres_programs() / name, *where, *words], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
