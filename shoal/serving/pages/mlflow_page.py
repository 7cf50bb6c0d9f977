"""MLflow's server behind the guard: `python -m shoal.serving.pages.mlflow_page server`, with the options of `mlflow
server`.

It asks for the user:password in SHOAL_PAGE_AUTH.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from shoal.serving.pages.guard import AUTH_VARIABLE, Guard, further_hosts

NAME = "shoal"
FACTORY = "shoal.serving.pages.mlflow_page:guarded"
GROUP = "mlflow.app"
"""The entry points among which `mlflow server --app-name` looks."""
OPEN_PATHS = ("/health", "/version")
LINKS = "/|/shoal-login"
"""The page is one; what it shows stands behind #."""
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>MLflow: log in</title>
<script>
  // A page may ask nothing while the password stands in its address.
  location.replace(location.origin + "/" + location.hash);
</script>
"""
"""The page of the link that logs a browser in, which has the user and the password before the host's name."""


def guarded() -> Guard:
    """Return MLflow's own application behind the guard; each worker process of its server makes one."""
    from mlflow.server.fastapi_app import app

    return Guard(
        app,
        hosts=further_hosts(),
        links=LINKS,
        login_page=LOGIN_PAGE,
        login=os.environ[AUTH_VARIABLE],
        open_paths=OPEN_PATHS,
    )


def main() -> None:
    """Run MLflow's command line, which knows this application beside its own."""
    if not os.environ.get(AUTH_VARIABLE):
        sys.exit(f"{AUTH_VARIABLE} is not set: set it to the user:password to ask for")
    from mlflow.utils import plugins

    installed = plugins.get_entry_points

    def with_ours(group: str) -> list[Any]:
        ours = [EntryPoint(NAME, FACTORY, GROUP)] if group == GROUP else []
        return [*installed(group), *ours]

    # As an entry point of the package it would only be known after Shoal is installed again.
    plugins.get_entry_points = with_ours
    from mlflow.cli import cli

    root = Path(__file__).parents[3]
    options = f"--app-dir '{root}'"
    sys.argv[0] = "mlflow"
    cli([*sys.argv[1:], "--app-name", NAME, "--uvicorn-opts", options])


if __name__ == "__main__":
    main()
