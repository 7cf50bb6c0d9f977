"""MLflow's server behind the guard: `python -m shoal.serving.pages.mlflow_page server`, with the options of `mlflow
server`.

It requires the user:password in SHOAL_PAGE_AUTH. MLflow's assistant is off: on the server's own host it would run
commands, and its panel would cover a quarter of the page.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import MutableMapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from shoal.serving.pages.guard import AUTH_VARIABLE, App, Guard, Receive, Scope, Send, further_hosts

NAME = "shoal"
FACTORY = "shoal.serving.pages.mlflow_page:make_app"
GROUP = "mlflow.app"
"""The group of entry points that `mlflow server --app-name` searches."""
OPEN_PATHS = ("/health", "/version")
LINKS = "/|/shoal-login"
"""There is one page; the part after # says what it shows."""
ASSISTANT = "/ajax-api/3.0/mlflow/assistant/"
"""Paths that begin so belong to the assistant, which runs commands on this host."""
SETTINGS_OF_PAGE = {
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "_mlflow_model_registry_promo_modal_dismissed_v1": "true",
    "mlflow.telemetry.info.alert.dismissed_v1": "true",
}
"""Settings that MLflow's page keeps in the browser: it opens with runs, not language models, and without pop-ups."""
HEAD = f"""<style>[data-assistant-ui="true"] {{ display: none !important; }}</style>
<script>
  for (const [key, value] of Object.entries({json.dumps(SETTINGS_OF_PAGE)})) {{
    if (localStorage.getItem(key) === null) localStorage.setItem(key, value);
  }}
</script>
"""
"""HTML that is added to the head of MLflow's page; settings that a user chose stay."""
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>MLflow: log in</title>
<script>
  // A page may ask nothing while the password stands in its address.
  location.replace(location.origin + "/" + location.hash);
</script>
"""
"""The page that logs a browser in; its link has the user and the password before the host's name."""


class QuietPage:
    """MLflow's application, whose page opens without its assistant and without pop-ups.

    Args:
        app: MLflow's application.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; add `HEAD` to the page."""
        if scope["type"] == "http" and scope["path"] == "/":
            send = with_head(send)
        await self._app(scope, receive, send)


def with_head(send: Send) -> Send:
    """Return a `send` that adds `HEAD` to an HTML answer."""
    start: MutableMapping[str, Any] = {}
    parts: list[bytes] = []

    async def sender(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        if message["type"] != "http.response.body":
            await send(message)
            return
        parts.append(message.get("body", b""))
        if message.get("more_body"):
            return
        body = b"".join(parts).replace(b"</head>", f"{HEAD}</head>".encode(), 1)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        if body:  # there is none in the answer to HEAD, or to a browser that has the page
            headers.append((b"content-length", str(len(body)).encode()))
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return sender


def make_app() -> Guard:
    """Return MLflow's application behind the guard; each worker process of its server creates one."""
    from mlflow.server.fastapi_app import app

    return Guard(
        QuietPage(app),
        closed=ASSISTANT,
        hosts=further_hosts(),
        links=LINKS,
        login_page=LOGIN_PAGE,
        login=os.environ[AUTH_VARIABLE],
        open_paths=OPEN_PATHS,
    )


def main() -> None:
    """Run MLflow's command line with this application beside its own."""
    if not os.environ.get(AUTH_VARIABLE):
        sys.exit(f"{AUTH_VARIABLE} is not set: set it to the user:password of the page")
    from mlflow.utils import plugins

    installed = plugins.get_entry_points

    def with_ours(group: str) -> list[Any]:
        found = list(installed(group))
        if group == GROUP:
            found.append(EntryPoint(NAME, FACTORY, GROUP))
        return found

    # An entry point of the package would only be found after Shoal is installed again.
    plugins.get_entry_points = with_ours
    from mlflow.cli import cli

    root = Path(__file__).parents[3]
    options = f"--app-dir '{root}'"
    sys.argv[0] = "mlflow"
    cli([*sys.argv[1:], "--app-name", NAME, "--uvicorn-opts", options])


if __name__ == "__main__":
    main()
