"""docs/review.md against a real MLflow server: its queries are run as they stand there, over HTTP."""

from __future__ import annotations

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

from shoal.data.prepared import open_prepared
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.champions import history
from shoal.review.served.promotion import approve, roll_back
from tests.conftest import SMALL
from tests.sources import ROOT

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
    command += ["--backend-store-uri", f"sqlite:///{home}/server.db", "--artifacts-destination", str(home / "kept")]
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (home / "log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=quiet, cwd=home, start_new_session=True)
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server, home / "log")
            patch.setenv("SHOAL_HOME", str(home))
            patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
            patch.chdir(home)
            before = mlflow.get_tracking_uri()
            mlflow.set_tracking_uri(f"http://127.0.0.1:{port}")
            yield [run_with(0), run_with(1)]
            mlflow.set_tracking_uri(before)
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
    assert not [event for event in run.events() if event.kind == "mlflow_unreachable"]
    return run


def test_the_queries_of_the_page_find_what_they_say(served: list[RunFolder], capsys: Any) -> None:
    page = (ROOT / "docs" / "review.md").read_text()
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
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
    assert known["differ"] == {"seed": ("0", "1")}
    assert known["numbers"]["score/acc"] == tuple(last)
    assert [[round for round, _ in curve] for curve in known["curves"]] == [[1, 2, 3], [1, 2, 3]]
    assert known["members"] == []
    assert first.name in capsys.readouterr().out


def test_a_second_sync_over_http_adds_nothing(served: list[RunFolder]) -> None:
    client = mlflow.MlflowClient()
    run_id = served[0].lineage().mlflow_run
    experiment = client.get_run(run_id).info.experiment_id

    def there() -> tuple[int, int, list[str]]:
        history = client.get_metric_history(run_id, "score/acc")
        return len(history), len(client.search_logged_models([experiment])), all_files(client, run_id)

    before = there()
    assert before[:2] == (3, 8), "three checkpoints and a final model of each run"
    assert len([name for name in before[2] if name.startswith("images/")]) == 2 * len(
        list(served[0].figures.glob("*.png"))
    )
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
    assert run.lineage().mlflow_uri == uri.replace("http://", "http://me:***@")
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

    approve(served[1], "it mixes less")
    assert aliases() == {"champion": "2", "previous": "1"}
    moved = roll_back(None, served[0].path.parent, "it does not")
    assert (moved.version, moved.before, moved.run) == ("1", "2", served[0].name)
    assert aliases() == {"champion": "1"}
    told = [(move.version, move.kind, move.why) for move in history(client, name)]
    assert told[1:] == [("2", "approved", "it mixes less"), ("1", "rolled back", "it does not")]
    assert told[0][:2] == ("1", "first")
