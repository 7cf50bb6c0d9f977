"""Prefect's environment (quiet, patient, at home), and whether a server answers, without importing Prefect."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import requests

from shoal.engine.settings import places
from shoal.engine.store.login import CLIENT_AUTH, SERVER_AUTH, USER, is_of_this_machine, known_login

lost = threading.Event()
"""Set when Prefect's server went out of reach in the middle of a run: what it was to be told cannot be delivered."""


def quiet() -> None:
    """Set Prefect's defaults for this process; what the user has set stays."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # A first start of the embedded server takes about 12 s, and more on a busy machine.
    # A lost server costs seconds, not the minutes of five doubling waits.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "1")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    if "PREFECT_HOME" not in os.environ:
        # Flow runs belong to the project's runs, not to the user's account; a profile of the user's still counts.
        profiles = Path("~/.prefect/profiles.toml").expanduser()
        if profiles.exists():
            os.environ.setdefault("PREFECT_PROFILES_PATH", str(profiles))
        os.environ["PREFECT_HOME"] = str(places.prefect_home())
    log_in()


def log_in() -> None:
    """Give Prefect's clients of this process the login of this home's server, unless the user has set one.

    Only for a server of this machine: another one is not sent the password.

    Raises:
        PrivateFileError: others can read or write the file with the login.
    """
    if CLIENT_AUTH in os.environ or not is_of_this_machine(os.environ.get("PREFECT_API_URL", "")):
        return
    login = known_login()
    if login is not None:
        os.environ[CLIENT_AUTH] = login


def guard_temporary_server() -> None:
    """Have the server that Prefect starts for this process, where none is named, ask for a password of its own.

    To be called before Prefect is imported.
    """
    profiles = os.environ.get("PREFECT_PROFILES_PATH")
    if "PREFECT_API_URL" in os.environ or (profiles and "PREFECT_API_URL" in Path(profiles).read_text()):
        return
    login = f"{USER}:{secrets.token_urlsafe()}"
    os.environ[SERVER_AUTH] = login
    os.environ[CLIENT_AUTH] = login
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = "http://127.0.0.1"  # nobody's page: it has none


def server_answers(seconds: float = 2.0) -> bool:
    """Whether the Prefect server of PREFECT_API_URL answers; False where none is named."""
    quiet()
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return False
    try:
        return requests.get(f"{url.rstrip('/')}/health", timeout=seconds).ok
    except requests.RequestException:
        return False
