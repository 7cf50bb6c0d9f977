"""The deployments of prefect.yaml, registered through Prefect's API.

`prefect deploy --all` of Prefect 3.8 stops after the first deployment: its look-up of active workers is refused by
its own server. The file stays in Prefect's format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from data.errors import ShoalError
from flows.quiet import quiet


class DeploymentError(ShoalError):
    """prefect.yaml is missing or cannot be used."""


def deploy_all(path: Path = Path("prefect.yaml")) -> dict[str, UUID]:
    """Register every deployment of a prefect.yaml; one that is there is updated.

    Args:
        path: the file; entrypoints are relative to the working directory, where workers will run them.

    Returns:
        Deployment ids by name.

    Raises:
        DeploymentError: no such file.
    """
    quiet()
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Cron

    if not path.exists():
        raise DeploymentError(f"no {path} in {Path.cwd()}: run this in the project's folder")
    found: dict[str, UUID] = {}
    for entry in yaml.safe_load(path.read_text())["deployments"]:
        schedules: list[Any] = [
            Cron(each["cron"], timezone=each.get("timezone", "UTC"), active=each.get("active", True))
            for each in entry.get("schedules", [])
        ]
        deployment = RunnerDeployment.from_entrypoint(
            entry["entrypoint"],
            name=entry["name"],
            description=entry.get("description"),
            tags=entry.get("tags", []),
            parameters=entry.get("parameters", {}),
            schedules=schedules,
            work_pool_name=entry["work_pool"]["name"],
        )
        identity: Any = deployment.apply()  # synchronous outside an event loop
        found[entry["name"]] = identity
    return found
