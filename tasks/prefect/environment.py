"""Prefect's environment variables, and whether its server answers; Prefect itself is not imported."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import requests

from shoal.engine.settings import places
from shoal.engine.settings.private_home import write_privately
from shoal.engine.store.user_name import name_user
from shoal.tasks.prefect.login import CLIENT_AUTH, SERVER_AUTH, USER, is_local_url, known_login

ANSWER_SECONDS = 2.0
"""Time in which Prefect's server must answer."""
DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The line at the end of every task run says no more than the task run itself.
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "WARNING",
    # A lost server costs seconds, not the minutes of five doubling waits.
    "PREFECT_CLIENT_MAX_RETRIES": "1",
    # The first start of the embedded server takes about 12 s, and more on a busy machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
}
"""Values of Prefect's environment variables that the user has not set."""
server_lost = threading.Event()
"""Set when Prefect's server went out of reach in the middle of a run: its last events cannot be delivered."""


def set_prefect_defaults() -> None:
    """Set Prefect's defaults for this process, which writes for its user alone; variables of the user stay."""
    write_privately()
    name_user()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "PREFECT_HOME" not in os.environ:
        # Flow runs belong to the project, not to the user's account; the user's profile still counts.
        profiles = Path("~/.prefect/profiles.toml").expanduser()
        if profiles.exists():
            os.environ.setdefault("PREFECT_PROFILES_PATH", str(profiles))
        os.environ["PREFECT_HOME"] = str(places.prefect_home())
    log_in()


def log_in() -> None:
    """Give Prefect's clients of this process the login of this home's server, unless the user has set one.

    The password is only sent to a server of this machine.

    Raises:
        PrivateFileError: others can read or write the file with the login.
    """
    if CLIENT_AUTH in os.environ or not is_local_url(os.environ.get("PREFECT_API_URL", "")):
        return
    login = known_login()
    if login is not None:
        os.environ[CLIENT_AUTH] = login


def guard_temporary_server() -> None:
    """Set a password for the temporary server that Prefect starts where PREFECT_API_URL names none.

    Call it before Prefect is imported.
    """
    profiles = os.environ.get("PREFECT_PROFILES_PATH")
    if "PREFECT_API_URL" in os.environ or (profiles and "PREFECT_API_URL" in Path(profiles).read_text()):
        return
    login = f"{USER}:{secrets.token_urlsafe()}"
    os.environ[SERVER_AUTH] = login
    os.environ[CLIENT_AUTH] = login
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = "http://127.0.0.1"  # no origin: it serves no page


def server_answers() -> bool:
    """Return whether the Prefect server of PREFECT_API_URL answers; False where the variable is not set."""
    set_prefect_defaults()
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return False
    try:
        return requests.get(f"{url.rstrip('/')}/health", timeout=ANSWER_SECONDS).ok
    except requests.RequestException:
        return False
