"""The guard in front of Prefect's and MLflow's pages: whom it admits."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from shoal.serving.pages import mlflow_page, prefect_page
from shoal.serving.pages.guard import LOGIN_PATH, Guard

OWN = "127.0.0.1:5000"
LOGIN = "shoal:word"
BASIC = "Basic " + base64.b64encode(LOGIN.encode()).decode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def asked(
    path: str = "/api/x",
    method: str = "GET",
    *,
    kind: str = "http",
    links: str = mlflow_page.LINKS,
    login: str | None = LOGIN,
    given: str | None = BASIC,
    host: str = OWN,
    **headers: str,
) -> tuple[Any, str, dict[bytes, bytes]]:
    """Status (or the code with which a WebSocket is closed), text and headers of the answer."""
    guard = Guard(
        app,
        hosts=["localhost:5000", "shoal.example.org"],
        links=links,
        login_page="the login page",
        login=login,
        open_paths=mlflow_page.OPEN_PATHS,
        closed=mlflow_page.ASSISTANT,
    )
    listed = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if given is not None:
        listed["authorization"] = given
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in listed.items()]
    scope = {"type": kind, "method": method, "path": path, "headers": encoded}
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    first = sent[0]
    if first["type"] == "websocket.close":
        return first["code"], "", {}
    return first["status"], sent[1]["body"].decode(), dict(first["headers"])


LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    "request_",
    [
        {"host": "evil.example"},
        {"host": "evil.example:5000"},
        {"host": "127.0.0.1.evil.example:5000"},
        {"host": "localhost.evil.example:5000"},
        {"host": "shoal.example.org:8080"},
        {"host": ""},
        {"host": "[::1"},
        {"method": "POST", "origin": "http://evil.example"},
        {"method": "POST", "origin": "http://127.0.0.1:8888"},
        {"method": "POST", "origin": "http://localhost:5000"},
        {"method": "POST", "origin": "null"},
        {"method": "POST", "origin": "chrome-extension://127.0.0.1:5000"},
        {"method": "OPTIONS", "origin": "http://evil.example"},
        {"origin": "http://evil.example"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {**LINK, "path": "/api/x"},
        {**LINK, "path": "/", "sec_fetch_dest": "iframe"},
        {**LINK, "path": "/", "method": "POST"},
        {"kind": "websocket", "origin": "http://evil.example"},
        {"kind": "websocket", "host": "evil.example:5000"},
        {"kind": "websocket", **LINK, "path": "/"},
    ],
)
def test_another_page_gets_no_answer_even_with_the_password(request_: dict[str, str]) -> None:
    if request_.get("origin") == "http://localhost:5000":
        request_ = {**request_, "host": "127.0.0.1:5001"}  # a listed name is its own page, this one not
        request_["origin"] = "http://localhost:5001"
    status, text, headers = asked(**request_)  # type: ignore[arg-type]
    assert status == (1008 if request_.get("kind") == "websocket" else 403)
    assert "inside" not in text
    assert not [name for name in headers if name.startswith(b"access-control")]
    assert b"www-authenticate" not in headers


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"host": "localhost:5000"},
        {"host": "localhost:5555"},
        {"host": "[::1]:5000"},
        {"host": "10.0.0.5:5000"},
        {"host": "Shoal.Example.org"},
        {"method": "POST", "origin": f"http://{OWN}", "sec_fetch_site": "same-origin"},
        {"method": "POST", "origin": "https://shoal.example.org"},
        {"path": "/", "sec_fetch_site": "none", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
        {**LINK, "path": "/"},
    ],
)
def test_its_own_page_its_user_and_a_link_are_answered(request_: dict[str, str]) -> None:
    status, text, headers = asked(**request_)  # type: ignore[arg-type]
    assert (status, text) == (200, "inside")
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"


@pytest.mark.parametrize(
    "given",
    [None, "", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"shoal:wor").decode(), f"Bearer {BASIC[6:]}"],
)
def test_without_the_password_there_is_no_answer(given: str | None) -> None:
    for path in ("/", "/api/x", "/ajax-api/x", "/graphql", LOGIN_PATH):
        status, text, headers = asked(path, given=given)
        assert status == 401
        assert headers[b"www-authenticate"].startswith(b"Basic ")
        assert "inside" not in text
    assert asked(kind="websocket", given=given)[0] == 1008
    assert asked("/health", given=given)[:2] == (200, "inside")
    assert asked("/health", "POST", given=given)[0] == 401
    assert asked("/health", given=given, host="evil.example")[0] == 403


def test_the_assistant_is_off_and_nothing_else() -> None:
    for path in ("/ajax-api/3.0/mlflow/assistant/message", "/ajax-api/3.0/mlflow/assistant/config"):
        assert asked(path)[0] == 403
        assert asked(path, "POST")[0] == 403
        assert asked(path, given=None)[0] == 401
    assert asked("/ajax-api/2.0/mlflow/runs/search", "POST")[:2] == (200, "inside")


def test_the_page_that_logs_in_is_the_guards() -> None:
    assert asked(LOGIN_PATH)[:2] == (200, "the login page")
    assert asked(LOGIN_PATH, login=None, given=None, links=prefect_page.LINKS)[:2] == (200, "the login page")


def test_links_open_prefects_pages_and_nothing_of_its_api() -> None:
    for path, status in (("/deployments", 200), ("/runs/flow-run/1", 200), ("/api", 403), ("/api/flows/1", 403)):
        assert asked(path, login=None, links=prefect_page.LINKS, **LINK)[0] == status
