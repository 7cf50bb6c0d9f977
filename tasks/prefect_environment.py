"""Prefect's environment (quiet, patient, at home), and whether a server answers, without importing Prefect."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import requests

from engine import places

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
