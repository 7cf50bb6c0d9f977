"""MLflow's server behind the guard: `python -m shoal.serving.pages.mlflow_page server`, with the options of `mlflow
server`.

It requires the user:password in SHOAL_PAGE_AUTH.
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
"""The group of entry points that `mlflow server --app-name` searches."""
OPEN_PATHS = ("/health", "/version")
LINKS = "/|/shoal-login"
"""There is one page; the part after # says what it shows."""
LOGIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>MLflow: log in</title>
<script>
  // A page may ask nothing while the password stands in its address.
  location.replace(location.origin + "/" + location.hash);
</script>
"""
"""The page that logs a browser in; its link has the user and the password before the host's name."""


def guarded() -> Guard:
    """Return MLflow's application behind the guard; each worker process of its server creates one."""
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
