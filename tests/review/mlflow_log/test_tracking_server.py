"""docs/review.md against a real MLflow server: its queries are run as they stand there, over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import requests

from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.champions import PROMOTED, last_move, make_champion
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri
from shoal.review.mlflow_log.model_registry import register
from shoal.review.served.promotion import approve, roll_back
from tests.conftest import SMALL
from tests.sources import ROOT

pytestmark = pytest.mark.long

RUN = {
    "method": {"name": "fedcc"},
    "rounds": 3,
    "checkpoint": {"keep": 3},
    "tracking": {"mlflow": True, "checkpoints": "all"},
}
"""What the page asks about."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunFolder]]:
    """Two finished runs, logged to a server of their own, which this process asks."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--port", str(port), "--workers", "1"]
    ready_store(home)  # a copy: the server would take ten seconds to make it
    command += ["--backend-store-uri", store_uri(home), "--artifacts-destination", str(home / "kept")]
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (home / "log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=quiet, cwd=home, start_new_session=True)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server, home / "log")
            patch.setenv("SHOAL_HOME", str(home))
            patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
            patch.chdir(home)
            mlflow.set_tracking_uri(f"http://127.0.0.1:{port}")
            yield [run_with(0), run_with(1)]
            mlflow.set_tracking_uri(None)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.RequestException:
            time.sleep(0.2)
    pytest.fail(log.read_text())


def run_with(seed: int) -> RunFolder:
    run = new_run(make_settings(merge(SMALL, RUN, {"seed": seed})))
    drive(run)
    assert not [event for event in run.events() if event.kind == "mlflow_incomplete"]
    return run


@pytest.mark.slow
def test_the_queries_of_the_page_find_what_they_say(served: list[RunFolder], capsys: Any) -> None:
    page = (ROOT / "docs" / "review.md").read_text()
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if '"previous"' in block:
            make_champion(known["client"], "shoal-fedcc-digits", "2", PROMOTED, "a test", "a test")
        exec(compile(block, "docs/review.md", "exec"), known)
    last = [run.table("rounds")["acc"].iloc[-1] for run in served]
    first = served[int(np.argmax(last))]
    assert known["best"].data.tags["shoal.run"] == first.name
    assert known["best"].data.metrics["score/acc"] == max(last)
    assert [run.info.run_id for run in known["same"]] == [known["best"].info.run_id]

    scores = first.table("rounds").set_index("round")["acc"]
    assert [model.name for model in known["rounds"]] == [
        f"round-{round:04d}" for round in scores.sort_values(ascending=False, kind="stable").index
    ] or scores.duplicated().any()
    assert known["rounds"][0].name == f"round-{scores.idxmax():04d}" or scores.eq(scores.max()).sum() > 1
    round = int(known["rounds"][0].params["round"])
    kept = (first.rounds / f"{round:04d}" / "server.safetensors").read_bytes()
    assert (Path(known["state"]) / "server.safetensors").read_bytes() == kept
    (linked,) = [metric for metric in known["rounds"][0].metrics if metric.key == "score/acc"]
    assert (linked.step, linked.value) == (round, scores.max())
    assert linked.dataset_digest == first.lineage().data.digest[:36]

    assert len(known["models"]) == 2
    assert known["models"][0].source_run_id == known["best"].info.run_id
    images = np.array(open_prepared(first.folder_of("data")).train_x[:2])
    assert len(known["served"].predict(images)) == 2

    assert (known["champion"].version, known["challenger"].version) == ("1", "2")
    assert known["differing"] == {"seed": known["best"].data.params["seed"]}
    assert Path(known["report"]).read_bytes() == (first.path / "report.html").read_bytes()
    assert known["version"].run_id == known["best"].info.run_id
    assert "### Quality beside null baselines" in known["version"].description
    assert known["previous"].version == "1"
    assert known["client"].get_model_version_by_alias("shoal-fedcc-digits", "champion").version == "2"
    assert known["differ"] == {"seed": ("0", "1")}
    assert known["numbers"]["score/acc"] == tuple(last)
    assert [[round for round, _ in curve] for curve in known["curves"]] == [[1, 2, 3], [1, 2, 3]]
    assert first.name in capsys.readouterr().out


@pytest.fixture(scope="module")
def asked(served: list[RunFolder]) -> dict[str, RunFolder]:
    """Two runs of an experiment of their own, by what sets them apart; the second is the champion after the first."""
    found = {}
    for what, changes in {"lr 0.0003": {}, "lr 0.01": {"local": {"lr": 0.01}}}.items():
        tracking = {"tracking": {"mlflow": True, "experiment": "questions", "register_as": "questions-model"}}
        run = new_run(make_settings(merge(SMALL, {"method": "fedcc", "rounds": 2}, tracking, changes)))
        drive(run)
        found[what] = run
    make_champion(mlflow.MlflowClient(), "questions-model", "2", PROMOTED, "a test", "a test")
    return found


@pytest.mark.slow
def test_mlflow_alone_answers_what_a_reviewer_asks(asked: dict[str, RunFolder]) -> None:
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("questions")
    (best, *others) = client.search_runs([experiment.experiment_id], order_by=["metrics.`score/acc` DESC"])
    accs = {what: run.table("rounds")["acc"].iloc[-1] for what, run in asked.items()}
    assert [run.data.metrics["score/acc"] for run in (best, *others)] == sorted(accs.values(), reverse=True)

    # What made it differ: its name says it, and the view has columns of scores and settings.
    what = next(what for what, run in asked.items() if run.name == best.data.tags["shoal.run"])
    assert best.info.run_name.startswith("fedcc digits · ")
    assert f" · {what} · " in best.info.run_name
    state = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.shoal"])["state"])
    assert {"metrics.`score/acc`", "params.`method.name`"} <= set(state["selectedColumns"])

    # Its data, its report, and its model with a card.
    lineage = asked[what].lineage()
    digests = {given.dataset.name: given.dataset.digest for given in best.inputs.dataset_inputs}
    assert digests == {
        "digits data": lineage.data.digest[:36],
        "digits partition": lineage.partition.digest[:36],
    }
    first = client.list_artifacts(best.info.run_id)[0]
    assert first.path == "Report.html"
    verdict = best.data.tags["verdict"]
    assert best.data.tags["mlflow.note.content"].startswith(f"**Verdict: {verdict}.** ")
    assert f"{best.info.run_id}/artifacts/Report.html)" in best.data.tags["mlflow.note.content"]
    (version,) = client.search_model_versions(f"run_id = '{best.info.run_id}'")
    for part in (
        f"Verdict: {verdict}. ",
        f"sha256 {lineage.data.digest}, DVC {lineage.data.dvc}",
        f"sha256 {lineage.partition.digest}, DVC {lineage.partition.dvc}",
        "- **sites**: 3\n",
        "- **clusters (K)**: 10\n",
        "- **this run**: ACC 0.",
        "- **K-means on pixels**: ACC 0.",
        "### Limits",
        f"shoal run runs/{asked[what].name}/settings.yaml",
    ):
        assert part in version.description, version.description

    # The champion, and the one before.
    champion = client.get_model_version_by_alias("questions-model", "champion")
    previous = client.get_model_version_by_alias("questions-model", "previous")
    assert champion.tags["shoal.run"] == asked["lr 0.01"].name
    assert previous.tags["shoal.run"] == asked["lr 0.0003"].name


@pytest.mark.slow
def test_pages_show_no_bookkeeping(asked: dict[str, RunFolder]) -> None:
    client = mlflow.MlflowClient()
    tags = client.get_run(asked["lr 0.01"].status().tracking.mlflow_run).data.tags
    shown = {key for key in tags if not key.startswith("mlflow.")}
    assert not [key for key in shown if key.endswith("_logged")]
    assert {"verdict", "shoal.run", "shoal.data_sha256", "shoal.code_sha256"} <= shown


@pytest.mark.slow
def test_a_card_that_a_person_wrote_stays(asked: dict[str, RunFolder]) -> None:
    client = mlflow.MlflowClient()
    run = asked["lr 0.0003"]
    run_id = run.status().tracking.mlflow_run
    (version,) = client.search_model_versions(f"run_id = '{run_id}'")
    client.update_model_version(version.name, version.version, "Mine.")
    register(run, run.settings(), client, run_id)
    assert client.get_model_version(version.name, version.version).description == "Mine."
    client.update_model_version(version.name, version.version, "")
    register(run, run.settings(), client, run_id)
    assert client.get_model_version(version.name, version.version).description == version.description


def test_a_second_sync_over_http_adds_nothing(served: list[RunFolder]) -> None:
    client = mlflow.MlflowClient()
    run_id = served[0].status().tracking.mlflow_run
    experiment = client.get_run(run_id).info.experiment_id

    def there() -> tuple[int, int, list[str]]:
        history = client.get_metric_history(run_id, "score/acc")
        return len(history), len(client.search_logged_models([experiment])), all_files(client, run_id)

    before = there()
    assert before[:2] == (3, 8), "three checkpoints and a final model of each run"
    drive(served[0])
    assert there() == before


def test_a_run_that_logs_over_http_prints_nothing(
    served: list[RunFolder], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    uri = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("http://", "http://me:secret-word@"))
    run = new_run(make_settings(merge(SMALL, RUN, {"rounds": 1, "tracking": {"model": False}})))
    drive(run)
    said = capfd.readouterr()
    assert run.status().tracking.mlflow_uri == uri.replace("http://", "http://me:***@")
    assert not said.out, "standard output may be for JSON alone"
    assert "secret-word" not in said.err


def all_files(client: Any, run_id: str) -> list[str]:
    """Every artifact of a run."""
    found, folders = [], [None]
    while folders:
        for each in client.list_artifacts(run_id, folders.pop()):
            (folders if each.is_dir else found).append(each.path)
    return sorted(found)


def test_a_champion_is_approved_and_taken_back_over_http(served: list[RunFolder]) -> None:
    name = "shoal-fedcc-digits"
    client = mlflow.MlflowClient()

    def aliases() -> dict[str, str]:
        found = client.get_registered_model(name).aliases
        return {alias: str(version) for alias, version in found.items() if alias in ("champion", "previous")}

    make_champion(client, name, "1", PROMOTED, "a test", "a test")
    approve(served[1], "it mixes less")
    assert aliases() == {"champion": "2", "previous": "1"}
    moved = roll_back(name, served[0].path.parent, "it does not")
    assert (moved.version, moved.before, moved.run) == ("1", "2", served[0].name)
    assert aliases()["champion"] == "1"
    told = [last_move(client, name, version) for version in ("2", "1")]
    assert [(move.kind, move.why) for move in told if move] == [
        ("approved", "it mixes less"),
        ("rolled back", "it does not"),
    ]
