"""Events that announce new data to Prefect: one for each deployment that uses the data, which starts it.

A deployment uses the folders that a `watch` of its parameters names, and the set that its settings name. The triggers
of prefect.yaml start it at the event. `shoal serve` watches the folders; `shoal data add` and `shoal data arrived`, for
instance in a hook of git, announce a set or a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class DataDeployment:
    """A deployment with the data that it uses.

    Args:
        name: of the deployment.
        folders: the folders that it watches.
        data: names of the data sets that it trains on.
    """

    name: str
    folders: tuple[Path, ...]
    data: tuple[str, ...]


def data_deployments(deployments: Iterable[dict[str, Any]]) -> list[DataDeployment]:
    """Return the deployments that use data, with these data.

    Args:
        deployments: as Prefect's API describes them.
    """
    found = []
    for each in deployments:
        parameters = [value for value in (each.get("parameters") or {}).values() if isinstance(value, dict)]
        watched = [value["watch"] for value in parameters if isinstance(value.get("watch"), str)]
        folders = tuple((places.home() / Path(name).expanduser()).resolve() for name in watched)
        sets = [value["data"]["name"] for value in parameters if isinstance(value.get("data"), dict)]
        names = tuple(name for name in sets if isinstance(name, str))
        if folders or names:
            found.append(DataDeployment(each["name"], folders, names))
    return found


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
    for each in data_deployments(known_deployments(api)):
        # The nights of a set with a watched folder add to it themselves.
        if folder in each.folders or (what in each.data and not each.folders):
            announce(api, each.name, what)
            names.append(each.name)
    return names


def fingerprint(folder: Path) -> str:
    """Return a digest of the names, sizes and times of all files below a folder, and of its pointer of DVC.

    Returns:
        An empty text where there is neither a file nor a pointer.
    """
    lines = []
    for place, _, files in os.walk(folder):
        for name in files:
            path = Path(place, name)
            try:
                facts = path.lstat()
            except OSError:
                continue  # it was removed a moment ago
            lines.append(f"{path.relative_to(folder)} {facts.st_size} {facts.st_mtime_ns}")
    pointer = folder.with_name(f"{folder.name}.dvc")
    if pointer.is_file():
        lines.append(pointer.read_text(errors="replace"))
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
        for each in data_deployments(known_deployments(self.api)):
            for folder in each.folders:
                key = f"{each.name} {folder}"
                now = fingerprint(folder)
                if key not in self._last:
                    absent = "" if folder.is_dir() else ", once there is such a folder"
                    self.tell(f"{each.name} watches {folder}: new files in it start it{absent}")
                quiet = self._last.get(key) == now
                self._last[key] = now
                if now and quiet and announced.get(key) != now and not is_busy(self.api, each.name):
                    announce(self.api, each.name, str(folder))
                    announced[key] = now
                    write_atomic(self.memory, json.dumps(announced).encode())
                    started.append(each.name)
        return started

    def _announced(self) -> dict[str, str]:
        """Return the announced state of each deployment's folder; nothing where the file is missing or damaged."""
        try:
            found = json.loads(self.memory.read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return found
