"""Events that announce new data to Prefect: one for each deployment that uses the data, which starts it.

A deployment uses the folders that a `watch` of its parameters names, and the set that its settings name. The triggers
of prefect.yaml start it at the event. `shoal serve` watches the folders; `shoal data add` and `shoal data arrived`, for
instance in a hook of git, announce a set or a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.serving.deployments import ask, known_deployments

ARRIVED = "shoal.data.arrived"
"""The event; the triggers of prefect.yaml expect it."""
RESOURCE = "shoal.arrival."
"""Prefix of the id of the event's resource; the name of a deployment follows."""
CHECK_SECONDS = 15
"""Time between two checks of the watched folders. Files that changed since the last check may still be copied."""


def folders_of(deployment: dict[str, Any]) -> list[Path]:
    """Return the folders that a deployment, as Prefect's API describes it, watches; what names none is passed over."""
    folders = []
    for section in sections_of(deployment):
        # Somebody may have typed anything: no text, the home of nobody, or a zero byte.
        with contextlib.suppress(KeyError, TypeError, RuntimeError, ValueError):
            folders.append((places.home() / Path(section["watch"]).expanduser()).resolve())
    return folders


def trains_on(deployment: dict[str, Any], name: str) -> bool:
    """Return whether the settings of a deployment, as Prefect's API describes it, name a data set."""
    data = [section.get("data") for section in sections_of(deployment)]
    return any(isinstance(section, dict) and section.get("name") == name for section in data)


def sections_of(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of a deployment that hold settings."""
    return [value for value in (deployment.get("parameters") or {}).values() if isinstance(value, dict)]


def announce(api: str, deployment: str, what: str) -> None:
    """Emit the event that starts a deployment.

    Args:
        api: address of the server's API.
        deployment: its name.
        what: the folder or the set with the new data.

    Raises:
        DeploymentError: the server does not answer.
    """
    event = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": ARRIVED,
        "resource": {"prefect.resource.id": f"{RESOURCE}{deployment}", "prefect.resource.name": what},
        "payload": {"message": f"new data in {what}"},
    }
    ask(api, "POST", "/events", [event])


def is_busy(api: str, deployment: str) -> bool:
    """Return whether a flow run of a deployment is starting or running.

    Raises:
        DeploymentError: the server does not answer.
    """
    wanted = {
        "deployments": {"name": {"any_": [deployment]}},
        "flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}},
        "limit": 1,
    }
    return bool(ask(api, "POST", "/flow_runs/filter", wanted))


def announce_data(what: str) -> list[str]:
    """Announce new data in a set or in a watched folder to the server of PREFECT_API_URL.

    Args:
        what: the name of a data set, or a folder.

    Returns:
        The deployments that start; none where no server is named.

    Raises:
        DeploymentError: the server does not answer.
    """
    api = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not api:
        return []
    folder = (places.home() / Path(what).expanduser()).resolve()
    names = []
    for deployment in known_deployments(api):
        folders = folders_of(deployment)
        # The nights of a set with a watched folder add to it themselves.
        if folder in folders or (not folders and trains_on(deployment, what)):
            announce(api, deployment["name"], what)
            names.append(deployment["name"])
    return names


def fingerprint(folder: Path) -> str:
    """Return a digest of the names, sizes and times of all files below a folder, and of its pointer of DVC.

    Returns:
        An empty text where there is neither a file nor a pointer.
    """
    lines = []
    for path in [Path(f"{folder}.dvc"), *folder.rglob("*")]:
        with contextlib.suppress(OSError):  # it is not there, or was removed a moment ago
            facts = path.lstat()
            if not stat.S_ISDIR(facts.st_mode):
                lines.append(f"{path} {facts.st_size} {facts.st_mtime_ns}")
    if not lines:
        return ""
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


class FolderWatch:
    """Checks the folders that deployments watch, and announces those that changed and then stayed as they are.

    Args:
        api: address of Prefect's API.
        memory: the file that remembers which state of each folder was announced, also when the service starts again.
        tell: shows a line on each folder that a deployment has begun to watch.
    """

    def __init__(self, api: str, memory: Path, tell: Callable[[str], None]) -> None:
        self.api = api
        self.memory = memory
        self.tell = tell
        self._last: dict[str, str] = {}

    def check(self) -> list[str]:
        """Announce every folder that differs from its announced state and has not changed since the last check.

        A folder waits while its deployment runs, since Prefect skips a run that collides with another one.

        Returns:
            The deployments that an event started.

        Raises:
            DeploymentError: the server does not answer.
        """
        started = []
        announced = self._announced()
        for deployment in known_deployments(self.api):
            name = deployment["name"]
            for folder in folders_of(deployment):
                key = f"{name} {folder}"
                now = fingerprint(folder)
                if key not in self._last:
                    self.tell(f"{name} watches {folder}: new files in it start it")
                quiet = self._last.get(key) == now
                self._last[key] = now
                if now and quiet and announced.get(key) != now and not is_busy(self.api, name):
                    announce(self.api, name, str(folder))
                    announced[key] = now
                    write_atomic(self.memory, json.dumps(announced).encode())
                    started.append(name)
        return started

    def _announced(self) -> dict[str, str]:
        """Return the announced state of each deployment's folder; nothing where the file is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return dict(json.loads(self.memory.read_text()))
        return {}
