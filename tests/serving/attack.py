"""What another page in the user's browser, and another user of the machine, try at the servers of `shoal serve`.

Each function returns an entry a try: what got through, or None where it was refused. A page is given the worst: the
browser adds the user's password by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import requests
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.serving.served import PATIENCE, Served, csrf_headers

REFUSED = (401, 403)
EVIL = "http://evil.example"


def listening(pid: int) -> set[tuple[str, int]]:
    """Where a process and all that it started listen."""
    found = set()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found |= {(c.laddr.ip, c.laddr.port) for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    return found


def got_through(found: list[str | None]) -> list[str]:
    """What got through."""
    return [each for each in found if each is not None]


def answers(port: int) -> bool:
    """Whether a port says anything to a browser."""
    try:
        requests.get(f"http://127.0.0.1:{port}/", timeout=10)
    except requests.RequestException:
        return False
    return True


def means(served: Served, port: int, tokens: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ways to ask, each as options of `requests`."""
    user = {"auth": served.login}
    yield "no password", {"headers": tokens}
    yield "a wrong password", {"headers": tokens, "auth": ("shoal", "guessed")}
    for origin in (EVIL, "null", f"http://127.0.0.1:{port + 1}", f"https://127.0.0.1.evil.example:{port}"):
        yield f"a page of {origin}", {"headers": {**tokens, "Origin": origin}, **user}
        simple = {"Origin": origin, "Content-Type": "text/plain"}
        yield f"a request of {origin} without preflight", {"headers": {**tokens, **simple}, **user}
    form = {"Origin": EVIL, "Content-Type": "application/x-www-form-urlencoded"}
    yield "a form", {"headers": {**tokens, **form}, **user}
    yield "an image", {"headers": {**tokens, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, **user}
    yield "a page of another port", {"headers": {**tokens, "Sec-Fetch-Site": "same-site"}, **user}
    for host in (f"evil.example:{port}", "evil.example", f"localhost.evil.example:{port}"):
        yield f"the name {host}", {"headers": {**tokens, "Host": host}, **user}


def tried(url: str, method: str, path: str, body: Any, how: str, options: dict[str, Any]) -> str | None:
    """What got through of one request; None where it was refused, and no page may read the answer."""
    data = None if method == "GET" else json.dumps(body)
    options = {**options, "headers": {"Content-Type": "application/json", **options["headers"]}}
    found = requests.request(method, f"{url}/{path}", data=data, timeout=PATIENCE, allow_redirects=False, **options)
    readable = [name for name in found.headers if name.lower().startswith("access-control-allow")]
    if found.status_code in REFUSED and not readable:
        return None
    return f"{how}: {method} {path} gave {found.status_code} {readable} {found.text[:80]}"


def preflight(url: str, path: str) -> str | None:
    """What the server says to a browser that asks whether another page may send a request."""
    asks = {"Origin": EVIL, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return tried(url, "OPTIONS", path, {}, "preflight", {"headers": asks})


def on_prefect(served: Served) -> list[str | None]:
    """Find the deployment `tell` and start it, read flow runs, and make an automation."""
    about = served.deployment("tell")
    parameters = {"message": "x", "command": ["sh", "-c", "id > /tmp/pwned"]}
    targets = [
        ("GET", f"deployments/{about['id']}", None),
        ("GET", "csrf-token?client=evil", None),
        ("POST", "deployments/filter", {}),
        ("POST", f"deployments/{about['id']}/create_flow_run", {"parameters": parameters}),
        ("PATCH", f"deployments/{about['id']}", {"parameters": parameters}),
        ("POST", "flow_runs/filter", {}),
        ("POST", "automations/", {"name": "evil", "trigger": {}, "actions": []}),
        ("POST", "admin/database/clear", {"confirm": True}),
    ]
    with served.session() as session:
        tokens = csrf_headers(session, f"{served.api}/flows")
    found = [preflight(served.api, path) for _, path, _ in targets]
    for how, options in means(served, served.port, tokens):
        found += [tried(served.api, method, path, body, how, options) for method, path, body in targets]
    user = {"auth": served.login, "headers": {}}
    found += [
        tried(served.api, method, path, body, "no token", user) for method, path, body in targets if method != "GET"
    ]
    return found


def on_mlflow(served: Served) -> list[str | None]:
    """Read runs, make an experiment, change a run, and talk to what else MLflow's server does."""
    api, ajax = "api/2.0/mlflow", "ajax-api/2.0/mlflow"
    targets = [
        ("GET", "", None),
        ("GET", f"{ajax}/experiments/search?max_results=9", None),
        ("GET", "get-artifact?path=report.html&run_id=1", None),
        ("POST", f"{api}/experiments/create", {"name": "evil"}),
        ("POST", f"{api}/experiments/delete", {"experiment_id": "1"}),
        ("POST", f"{ajax}/runs/create", {"experiment_id": "1"}),
        ("POST", f"{ajax}/upload-artifact?run_uuid=1&path=x", {}),
        ("POST", "graphql", {"query": "{ __typename }"}),
        ("POST", "v1/traces", {}),
        ("POST", "ajax-api/3.0/mlflow/assistant/message", {"message": "run id"}),
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/1/x", {}),
    ]
    found = [preflight(served.page, path) for _, path, _ in targets]
    for how, options in means(served, served.mlflow_port, {}):
        found += [tried(served.page, method, path, body, how, options) for method, path, body in targets]
    return found


def by_websocket(served: Served) -> list[str | None]:
    """Events that start automations, and the log, by WebSockets, which browsers let every page open."""
    found: list[str | None] = []
    for path in ("events/in", "events/out", "logs/out"):
        for name, headers in (
            ("another page", {"Origin": EVIL}),
            ("another name", {"Host": f"evil.example:{served.port}"}),
            ("no subprotocol", {"Sec-WebSocket-Protocol": ""}),
        ):
            status = handshake(served.port, f"/api/{path}", headers)
            found.append(f"{name}: {path} gave {status}" if status == 101 else None)
        for token in (None, "", "shoal:guessed"):
            address = f"ws://127.0.0.1:{served.port}/api/{path}"
            found.append(None)
            with contextlib.suppress(WebSocketException), connect(address, subprotocols=["prefect"]) as opened:  # type: ignore[list-item]
                opened.send(json.dumps({"type": "auth", "token": token}))
                found[-1] = f"token {token}: {path} gave {opened.recv(timeout=60)!r}"
    return found


def handshake(port: int, path: str, headers: dict[str, str]) -> int:
    """The status of the answer to the beginning of a WebSocket; 101: it is open."""
    asks = {
        "Host": f"127.0.0.1:{port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "prefect",
        **headers,
    }
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as opened:
        opened.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        for name, value in asks.items():
            if value:
                opened.putheader(name, value)
        opened.endheaders()
        return opened.getresponse().status


def start_a_program(served: Served, folder: Path) -> None:
    """Have the flow `tell` run a program, and append to a file, that a parameter names; wait for its end."""
    about = served.deployment("tell")
    for parameters in (
        {"message": "x", "command": ["touch", str(folder / "pwned")]},
        {"message": "ssh-rsa AAAA", "file": str(folder / "authorized_keys")},
    ):
        url = f"{served.api}/deployments/{about['id']}/create_flow_run"
        with served.session() as session:
            made = session.post(url, json={"parameters": parameters}, headers=csrf_headers(session, url), timeout=60)
        if made.status_code >= 400:
            continue
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            (run,) = served.find("flow_runs", flow_runs={"id": {"any_": [made.json()["id"]]}})
            if run["state_type"] in ("FAILED", "CRASHED", "COMPLETED"):
                break
            time.sleep(0.5)


def state(served: Served) -> dict[str, Any]:
    """What an attack would change: deployments, automations, the flow `tell`'s runs, and MLflow's experiments."""
    url = f"{served.page}/api/2.0/mlflow/experiments/search"
    experiments = requests.get(url, params={"max_results": 99}, auth=served.login, timeout=60).json()
    return {
        "deployments": sorted((each["name"], str(each["parameters"])) for each in served.find("deployments")),
        "automations": sorted(each["name"] for each in served.find("automations")),
        "told": len(served.find("flow_runs", flows={"name": {"any_": ["tell"]}})),
        "experiments": sorted(each["name"] for each in experiments["experiments"]),
    }
