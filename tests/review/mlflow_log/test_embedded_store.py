"""The embedded MLflow store: made once by however many, and refused where it is broken."""

from __future__ import annotations

import base64
import contextlib
import http.server
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.cli.checks import servers
from shoal.engine.store.run_events import Event
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.lifecycle import driving
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log import tracking
from shoal.review.mlflow_log.embedded_store import TrackingStoreError, ready_store, store_uri
from shoal.review.mlflow_log.run_names import title
from shoal.review.mlflow_log.tracking import INCOMPLETE

pytestmark = pytest.mark.long

Make = Callable[..., Any]
ON = {"mlflow": True, "model": False}
FIRST = """
import sys, time
from pathlib import Path
from mlflow import MlflowClient
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri
from shoal.review.mlflow_log.experiments import experiment_of
store = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
ready_store(store)
uri = store_uri(store)
print(experiment_of(MlflowClient(tracking_uri=uri), "shoal"))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store, made by three processes that begin at the same moment."""
    store = tmp_path_factory.mktemp("many") / "mlflow"
    made = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST, str(store)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for each in made:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in made:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    answers = [each.communicate() for each in made]
    assert [each.returncode for each in made] == [0, 0, 0], answers
    assert {out.strip() for out, _ in answers} == {"1"}
    assert sorted(path.name for path in store.iterdir() if "mlflow.db" in path.name) == ["mlflow.db"]
    return (store / "mlflow.db").read_bytes()


def spoil(path: Path) -> None:
    path.write_bytes(b"\xff" * 3000)


def test_a_broken_store_is_refused_with_what_to_do(home: Path, whole: bytes) -> None:
    path = home / "mlflow" / "mlflow.db"
    path.parent.mkdir()
    path.write_bytes(whole)
    (check,) = (each for each in servers() if each.name == "mlflow store")
    assert check.ok
    spoil(path)
    (check,) = (each for each in servers() if each.name == "mlflow store")
    assert not check.ok
    assert "mlflow.db cannot be used" in check.detail
    assert "move its folder away" in check.repair
    with pytest.raises(
        TrackingStoreError, match=r"mlflow\.db cannot be used .*move it away, and `shoal model log RUN`"
    ):
        ready_store(path.parent)
    assert path.read_bytes() == b"\xff" * 3000, "nothing of it is touched"


def test_a_store_whose_writer_was_killed_keeps_what_it_had(home: Path, whole: bytes) -> None:
    """In the middle of a change SQLite has a journal beside the file, by which the next one takes the change back."""
    path = home / "mlflow" / "mlflow.db"
    path.parent.mkdir()
    path.write_bytes(whole)
    ready_store(path.parent)
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute("insert into registered_models (name) values ('shoal-kept')")
    begin = (
        f"import os, sqlite3; store = sqlite3.connect({str(path)!r}, isolation_level=None);"
        "store.execute('pragma cache_size=1'); store.execute('begin immediate');"
        "[store.execute('insert into registered_models (name) values (?)', (str(k) * 100,)) for k in range(3000)];"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", begin], check=True)
    assert (path.parent / "mlflow.db-journal").exists()
    ready_store(path.parent)
    with contextlib.closing(sqlite3.connect(path)) as store:
        assert store.execute("select name from registered_models").fetchall() == [("shoal-kept",)]


def test_a_run_goes_on_beside_a_broken_store_and_is_logged_when_it_was_moved_away(home: Path, small: Make) -> None:
    (home / "mlflow").mkdir()
    store = home / "mlflow" / "mlflow.db"
    spoil(store)
    run = new_run(small(rounds=1, tracking=ON))
    drive(run)
    assert run.status().state == "finished"
    (told,) = (event for event in run.events() if event.kind == INCOMPLETE)
    assert "move it away" in told.message
    store.rename(home / "mlflow" / "broken")
    logged_again = subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", "model", "log", run.name], cwd=home, capture_output=True, text=True
    )
    assert logged_again.returncode == 0, logged_again.stderr + logged_again.stdout
    # Another spelling of its place: this process keeps its connection to the broken file.
    client = MlflowClient(store_uri(home / "mlflow" / ".." / "mlflow"))
    logged = run.status().tracking.mlflow_run
    assert client.get_run(logged).info.status == "FINISHED"
    assert [metric.step for metric in client.get_metric_history(logged, "score/acc")] == [1]


def test_a_refused_second_resume_touches_nothing(home: Path, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(small(rounds=2, tracking=ON))
    states: list[str] = []

    def observe(event: Event) -> None:
        if event.kind == "round_finished" and event.round == 1:
            tracking.sync(run, run.settings(), "RUNNING")
            client = MlflowClient(store_uri(home / "mlflow"))
            with monkeypatch.context() as patched:
                # A refused process must not start workers.
                patched.setattr(driving, "open_pool", lambda *_: pytest.fail("workers were started"))
                with pytest.raises(RunError, match="in use by another process"):
                    drive(RunFolder(run.path))
            states.append(client.get_run(run.status().tracking.mlflow_run).info.status)

    drive(run, observers=[observe])
    assert states == ["RUNNING"]


def test_the_doctor_asks_a_server_with_the_password_of_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = base64.b64encode(b"me:proxy-word").decode()

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            known = self.headers["Authorization"] == f"Basic {word}"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(b"{}" if known else b"who are you?")

        def log_message(self, *words: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    refused = next(servers())
    assert not refused.ok
    assert "401" in refused.detail
    assert "MLFLOW_TRACKING_PASSWORD" in refused.repair
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "proxy-word")
    assert next(servers()).ok
    server.shutdown()
    server.server_close()


def test_a_name_is_no_longer_than_tables_hold(small: Make) -> None:
    long = title(small(partition={"kind": "by_column", "column": "c" * 300, "clients": None}))
    assert (len(long), long[-1]) == (250, "…")
