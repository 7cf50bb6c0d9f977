"""MLflow as a view of the run folder, on a real SQLite store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.cli.checks import packages, stores
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import flatten, make_settings
from shoal.engine.store.checkpoint import load_manifest, rounds_done
from shoal.engine.store.code_version import shoal_version
from shoal.engine.store.codec import load_server
from shoal.engine.store.lineage import SiteVersion
from shoal.engine.store.round_paths import RoundPaths
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.methods.scores.metrics import METRICS
from shoal.review.mlflow_log.descriptions import model_card
from shoal.review.mlflow_log.experiments import NOTE
from shoal.review.mlflow_log.models import models_of, write_checkpoint
from shoal.review.mlflow_log.rounds import costs_of_sites, metric_name
from shoal.review.mlflow_log.run_names import run_name
from shoal.review.mlflow_log.tracking import sync
from shoal.review.results.clusters import TABLE, quality
from shoal.review.results.result import run_result
from shoal.review.results.views import REPORT
from tests.conftest import SMALL
from tests.runs import straight

Make = Callable[..., Any]
ON = {"mlflow": True}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """A finished run, logged with its model, in a home of its own."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("tracked")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        (home / "notes").write_text("of a project")
        for words in ("init -q", "add notes", "-c user.name=a -c user.email=a@b.example commit -qm one"):
            subprocess.run(["git", *words.split()], cwd=home, check=True)
        run = new_run(make_settings(merge(SMALL, {"rounds": 2, "tracking": ON})))
        drive(run)
        yield run


@pytest.mark.long
def test_the_report_and_the_check_name_the_project_and_shoal(tracked: RunFolder) -> None:
    lineage = tracked.lineage()
    assert lineage.shoal == shoal_version()
    assert lineage.git.commit
    page = (tracked.path / REPORT).read_text()
    assert f'<td>commit</td><td class="words">{lineage.git.commit}</td>' in page
    shoal = f'{lineage.shoal.in_words()}<br><span class="about">sha256 {lineage.shoal.sha256}</span></td>'
    assert f'<td>Shoal</td><td class="words">{shoal}' in page
    card = model_card(tracked, tracked.settings())
    assert f"- **commit**: {lineage.git.commit}\n- **Shoal**: " in card
    assert lineage.shoal.sha256 in card
    told = {check.name: check for check in (*packages(), *stores())}
    assert told["git"].detail == lineage.git.commit
    assert lineage.shoal.sha256 in told["shoal"].detail


def client_of(home: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{home}/mlflow/mlflow.db")


def test_a_run_is_logged_once_with_its_lineage(tracked: RunFolder) -> None:
    client = client_of(places.home())
    run_id = tracked.status().tracking.mlflow_run
    for _ in range(2):  # the second time changes nothing
        assert sync(tracked, tracked.settings()) == run_id
        drive(tracked)
    found = client.get_run(run_id)
    assert found.info.status == "FINISHED"
    rounds = tracked.table("rounds")
    history = client.get_metric_history(run_id, "score/acc")
    assert [(m.step, m.value) for m in history] == list(zip(rounds["round"], rounds["acc"], strict=True))
    assert found.data.params == {key: str(value) for key, value in flatten(tracked.settings()).items()}
    assert found.info.run_name == run_name(tracked.settings())
    lineage = tracked.lineage()
    for tag, value in (
        ("shoal.data_dvc", lineage.data.dvc),
        ("shoal.partition_dvc", lineage.partition.dvc),
        ("shoal.settings_sha256", tracked.settings().digest()),
        ("shoal.run", tracked.name),
        ("mlflow.source.git.commit", lineage.git.commit),
        ("shoal.git_commit", lineage.git.commit),
        ("shoal.git_dirty", "False"),
        ("shoal.version", lineage.versions["shoal"]),
        ("shoal.code_sha256", shoal_version().sha256),
    ):
        assert found.data.tags[tag] == value
    assert {d.dataset.digest for d in found.inputs.dataset_inputs} == {
        lineage.data.digest[:36],
        lineage.partition.digest[:36],
    }
    judged = {name: client.get_metric_history(run_id, metric_name(name)) for name in quality(tracked)}
    assert {"largest_cluster", "neighbour_agreement", "acc_of_pixels", "chance_acc"} <= judged.keys()
    verdict = run_result(tracked).verdict
    assert (found.data.tags["verdict"], found.data.tags["verdict.reason"]) == (verdict.word, verdict.reason)
    assert {n: [(m.step, m.value) for m in found] for n, found in judged.items()} == {
        name: [(2, value)] for name, value in quality(tracked).items()
    }
    paths = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert {"settings.yaml", "Report.html", "figures", "clients.parquet", TABLE} <= paths
    assert client.list_artifacts(run_id, "figures/clusters")


@pytest.mark.long
def test_nothing_of_single_clients_is_told_where_that_is_off(home: Path, small: Make) -> None:
    run = new_run(small(rounds=2, tracking={**ON, "clients": False}))
    drive(run)
    client = client_of(home)
    run_id = run.status().tracking.mlflow_run
    metrics = client.get_run(run_id).data.metrics
    assert "score/acc" in metrics
    logged = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert logged == {"settings.yaml", "lineage.json", "rounds.parquet"}
    models = models_of(client, client.get_run(run_id))
    (checkpoint,) = client.list_logged_model_artifacts(models["round-0002"].model_id)
    assert checkpoint.path == "server.safetensors", "the manifest names clients"
    assert "the report" not in client.get_run(run_id).data.tags[NOTE]
    (version,) = client.search_model_versions(f"run_id = '{run_id}'")
    assert "### Limits" in version.description


def test_of_single_clients_updates_mlflow_gets_those_that_enrol(home: Path, small: Make) -> None:
    settings = small(
        method={"name": "cfl", "criterion": "schedule", "schedule": [2], "gamma_max": 0.0},
        partition={"kind": "iid", "clients": 4, "validation": 0.3},
        participation={"fraction": 0.75},
        rounds=4,
    )
    run = straight(settings)
    paths = RoundPaths(run.path, 4)
    whole = set(load_server(paths.server).tensors)
    starts = {name.split("/")[0] for name in whole}
    assert {"latest", "edge"} <= starts
    for told, left in ((True, {"edge"}), (False, set())):
        folder = home / str(told)
        folder.mkdir()
        write_checkpoint(run, small(tracking={"clients": told}, method={"name": "cfl"}), 4, folder)
        kept = {name.split("/")[0] for name in load_server(folder / "server.safetensors").tensors}
        assert kept == starts - {"latest", "edge"} | left
        assert (folder / "manifest.json").exists() == told


def test_the_model_loads_in_a_fresh_process(tracked: RunFolder, tmp_path: Path) -> None:
    code = (
        "import json, sys, numpy as np, mlflow\n"
        "mlflow.set_tracking_uri(sys.argv[2])\n"
        "model = mlflow.pyfunc.load_model(f'runs:/{sys.argv[1]}/model')\n"
        "assert model.metadata.run_id == sys.argv[1]\n"
        "found = model.predict(np.zeros((3, 1, 8, 8), dtype=np.uint8))\n"
        "print(json.dumps([list(found.columns), len(found), sum(found['soft'][0]), len(found['embedding'][0])]))\n"
    )
    words = (tracked.status().tracking.mlflow_run, f"sqlite:///{places.home()}/mlflow/mlflow.db")
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    columns, count, total, width = json.loads(done.stdout.splitlines()[-1])
    assert columns == ["cluster", "cluster_id", "soft", "embedding"]
    assert count == 3
    assert total == pytest.approx(1, abs=1e-5)
    assert width == 128


@pytest.mark.long
def test_out_of_reach_mlflow_never_stops_a_run(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    run = new_run(small(rounds=2, tracking={**ON, "model": False}))
    assert drive(run).status == "finished"
    told = [e for e in run.events() if e.kind == "mlflow_incomplete"]
    assert len(told) == 1
    assert "127.0.0.1:9" in told[0].message
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    drive(run)
    history = client_of(home).get_metric_history(run.status().tracking.mlflow_run, "score/acc")
    assert [m.step for m in history] == [1, 2]


def test_a_run_is_logged_before_its_first_checkpoint(home: Path, small: Make) -> None:
    run = new_run(small(tracking=ON))
    assert not rounds_done(run)
    assert sync(run, run.settings(), "RUNNING") == run.status().tracking.mlflow_run


def test_costs_are_told_by_site(small: Make) -> None:
    run = straight(small(rounds=1))
    sites = {"north": SiteVersion("", (0, 2)), "a:b/c": SiteVersion("", (1,))}
    costs = costs_of_sites(load_manifest(run, 1), sites)
    rows = run.table("clients").query("client in (0, 2)")
    assert costs["site/bytes_up north"] == rows["bytes_up"].sum() > 0
    assert costs["site/seconds north"] == pytest.approx(rows["seconds"].sum())
    assert costs["site/bytes_down a:b_c"] > 0
    assert costs_of_sites(load_manifest(run, 1), {}) == {}


def test_metrics_come_in_sections() -> None:
    said = {name: metric_name(name) for name in [metric.name for metric in METRICS] + ["loss_all", "epsilon_sent"]}
    assert said["acc"] == "score/acc"
    assert said["probe"] == "score/probe"
    assert said["loss"] == "training/loss"
    assert said["loss_all"] == "training/loss_all"
    assert said["balance"] == "structure/balance"
    assert said["epsilon_sent"] == "privacy/epsilon_sent"
    assert {name.split("/")[0] for name in said.values()} == {"score", "training", "structure", "privacy"}
    costs = [metric_name(name) for name in ("bytes_up", "seconds_round", "clients", "loss", "clusters_used")]
    assert min(costs) > "score/zzz", "MLflow orders sections by their names: scores come first"


def test_report_and_figures_show_the_numbers(tracked: RunFolder) -> None:
    page = (tracked.path / "report.html").read_text()
    assert f"{tracked.table('rounds').iloc[-1]['acc']:.4f}" in page
    assert page.count("data:image/png;base64,") == len(list(tracked.figures.glob("*.png"))) == 4
