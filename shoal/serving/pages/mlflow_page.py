"""MLflow's server behind the guard: `python -m shoal.serving.pages.mlflow_page server`, with the options of `mlflow
server`.

It requires the user:password in SHOAL_PAGE_AUTH. MLflow's assistant is off: on the server's own host it would run
commands. MLflow finds `make_app` by Shoal's entry point in the group `mlflow.app`.
"""

from __future__ import annotations

import os
import sys

from shoal.serving.pages.guard import AUTH_VARIABLE, Guard, further_hosts

NAME = "shoal"
"""Of the entry point."""
OPEN_PATHS = ("/health", "/version")
LINKS = "/|/shoal-login"
"""There is one page; the part after # says what it shows."""
ASSISTANT = ("/ajax-api/3.0/mlflow/assistant/",)
"""Paths that begin so belong to the assistant, which runs commands on this host."""
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>MLflow: log in</title>
<script>
  // A page may ask nothing while the password stands in its address.
  location.replace(location.origin + "/" + location.hash);
</script>
"""
"""The page that logs a browser in; its link has the user and the password before the host's name."""


def make_app() -> Guard:
    """Return MLflow's application behind the guard; each worker process of its server creates one."""
    from mlflow.server.fastapi_app import app

    return Guard(
        app,
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
    from mlflow.cli import cli

    sys.argv[0] = "mlflow"
    cli([*sys.argv[1:], "--app-name", NAME])


if __name__ == "__main__":
    main()
