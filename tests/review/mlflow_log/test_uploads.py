"""Files on their way to MLflow have the time that their size needs, and everything else is noticed in seconds."""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.review.mlflow_log import uploads
from shoal.review.mlflow_log.uploads import VARIABLE, longer_timeout


class SlowStore(http.server.BaseHTTPRequestHandler):
    """A server that keeps files somewhere slow: it answers seconds after it has a file, and other questions never."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(2.5)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def slow_store() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowStore)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_that_takes_longer_than_an_answer_may_arrives(
    slow_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(uploads, "MIN_BYTES_PER_SECOND", 100.0)
    store = MlflowArtifactsRepository("mlflow-artifacts:/1/run/artifacts", tracking_uri=slow_store)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "server.safetensors").write_bytes(b"x" * 1000)
    with pytest.raises(MlflowException):
        store.log_artifacts(str(tmp_path / "model"))
    with longer_timeout(tmp_path):
        store.log_artifacts(str(tmp_path / "model"))
    assert os.environ[VARIABLE] == "1"


def test_what_a_user_allows_is_added_to_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 3_000_000_000)  # sparse
    monkeypatch.setenv(VARIABLE, "60")
    with longer_timeout(tmp_path / "large"), longer_timeout():
        assert os.environ[VARIABLE] == "3060"
    assert os.environ[VARIABLE] == "60"
    monkeypatch.delenv(VARIABLE)
    with longer_timeout(tmp_path):
        assert os.environ[VARIABLE] == "3120"
    assert VARIABLE not in os.environ


@pytest.mark.long
def test_models_and_files_of_a_run_have_that_time(home: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from shoal.lifecycle.driving import drive
    from shoal.lifecycle.starting import new_run

    timeouts = []

    def asked(kind: str, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            timeouts.append((kind, int(os.environ[VARIABLE])))
            return real(*given, **named)

        return call

    monkeypatch.setenv(VARIABLE, "10")
    monkeypatch.setattr(uploads, "MIN_BYTES_PER_SECOND", 10.0)
    for name in ("log_model_artifacts", "log_artifacts"):
        monkeypatch.setattr(MlflowClient, name, asked(name, getattr(MlflowClient, name)))
    drive(new_run(small(rounds=1, tracking={"mlflow": True, "model": False})))
    assert {kind for kind, _ in timeouts} == {"log_model_artifacts", "log_artifacts"}
    assert all(seconds > 100 for _, seconds in timeouts)
