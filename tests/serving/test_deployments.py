"""What Prefect's server is asked while deployments are registered: a busy one is asked again, a broken one named."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, PREFECT_CLIENT_RETRY_JITTER_FACTOR, temporary_settings

from shoal.serving.deployments import DeploymentError, ask, make_pool, read_project

TEMPLATE = {"base_job_template": {"variables": {"properties": {"env": {"default": {"KEPT": "1", "OLD": "2"}}}}}}


class PrefectServer(HTTPServer):
    """Gives the answers that are in `statuses`, then 200, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.statuses: list[int] = []
        self.asked: list[tuple[str, Any]] = []

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api"


class Answer(BaseHTTPRequestHandler):
    server: PrefectServer

    def do_GET(self) -> None:
        if "csrf-token" in self.path:  # as Prefect's server answers where it asks for none
            self.send_response(422)
            self.end_headers()
            self.wfile.write(b"CSRF protection is disabled.")
            return
        length = int(self.headers.get("Content-Length", 0))
        self.server.asked.append((self.command, json.loads(self.rfile.read(length)) if length else None))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()
        self.wfile.write(json.dumps(TEMPLATE).encode())

    do_PATCH = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def prefect_server() -> Iterator[PrefectServer]:
    with PrefectServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 2, PREFECT_CLIENT_RETRY_JITTER_FACTOR: 0}):
        yield


def no_command(*words: str) -> None:
    raise AssertionError(words)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("busy", [429, 502, 503])
def test_a_busy_server_is_asked_again(prefect_server: PrefectServer, impatient: None, method: Any, busy: int) -> None:
    prefect_server.statuses = [busy, busy]
    assert ask(prefect_server.api, method, "/", {"a": 1}) == TEMPLATE
    assert prefect_server.asked == [(method, {"a": 1})] * 3


def test_a_pool_is_changed_by_a_server_that_is_busy_in_between(prefect_server: PrefectServer, impatient: None) -> None:
    prefect_server.statuses = [503, 200, 503]
    make_pool(prefect_server.api, {"NEW": "3", "OLD": None}, no_command)
    assert [method for method, _ in prefect_server.asked] == ["GET", "GET", "PATCH", "PATCH"]
    env = prefect_server.asked[-1][1]["base_job_template"]["variables"]["properties"]["env"]
    assert env["default"] == {"KEPT": "1", "NEW": "3"}


@pytest.mark.parametrize("statuses", [[503] * 9, [500], [401]])
def test_a_server_that_will_not_is_one_sentence(
    prefect_server: PrefectServer, impatient: None, statuses: list[int]
) -> None:
    prefect_server.statuses = statuses
    with pytest.raises(DeploymentError, match=rf"did not answer \(.*{statuses[0]} .*prefect\.log"):
        make_pool(prefect_server.api, {}, no_command)


def test_a_server_that_is_gone_is_one_sentence(impatient: None) -> None:
    with pytest.raises(DeploymentError, match="did not answer"):
        ask("http://127.0.0.1:9/api", "GET", "/")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[]", "deployments: "),
        ("deployments: []", "deployments: "),
        ("deployments: [3]", r"deployments\.0: "),
        ("deployments: [{name: n, work_pool: {name: p}}]", r"deployments\.0\.entrypoint: "),
        ("deployments: [{name: n, entrypoint: e, work_pool: p}]", r"deployments\.0\.work_pool: "),
    ],
)
def test_what_is_wrong_in_prefect_yaml_is_one_sentence(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(DeploymentError, match=rf"prefect\.yaml: {wrong}"):
        read_project(tmp_path)


def test_a_pool_that_is_not_there_is_made(prefect_server: PrefectServer) -> None:
    prefect_server.statuses = [404]
    made: list[tuple[str, ...]] = []
    make_pool(prefect_server.api, {}, lambda *words: made.append(words))
    assert made == [("work-pool", "create", "shoal", "--type", "process")]
    prefect_server.statuses = [404, 404]
    with pytest.raises(DeploymentError, match="has no work pool shoal although"):
        make_pool(prefect_server.api, {}, lambda *words: None)
