"""The work pool and the deployments of prefect.yaml, registered by Prefect's own `prefect deploy`.

Schedules, parameters and pauses that users set on Prefect's page are kept: `prefect deploy` gets a file with those of
each deployment that the server knows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from shoal.core.errors import ShoalError
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.tasks.prefect.login import CLIENT_AUTH

POOL = "shoal"


class DeploymentError(ShoalError):
    """prefect.yaml is missing or cannot be used, or the server refuses its content."""


class Entry(BaseModel):
    """What a deployment of prefect.yaml has to have; Prefect judges its other keys."""

    name: str
    entrypoint: str
    work_pool: dict[str, Any]


ENTRIES = TypeAdapter(Annotated[list[Entry], Field(min_length=1)])


def read_project(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's prefect.yaml.

    Raises:
        DeploymentError: there is none, or its deployments are not as Prefect needs them.
    """
    path = folder / "prefect.yaml"
    if not path.is_file():
        raise DeploymentError(
            f"no prefect.yaml in {folder}: start `shoal serve` in the project's folder, or make one with "
            "`shoal init FOLDER`"
        )
    project: dict[str, Any] = read_yaml_file(path, "", DeploymentError)
    entries = project.get("deployments") if isinstance(project, dict) else None
    try:
        ENTRIES.validate_python(entries)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, ("deployments", *wrong["loc"])))
        raise DeploymentError(
            f"{path}: {where}: {wrong['msg']}; the file that `shoal init` makes shows deployments"
        ) from None
    return project


def keep_what_users_set(project: dict[str, Any], known: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a prefect.yaml that changes no schedule, no parameters and no pause that users set on Prefect's page.

    Args:
        project: prefect.yaml.
        known: the server's deployments, as its API describes them.
    """
    by_name = {(deployment["name"], deployment["entrypoint"]): deployment for deployment in known}
    entries = []
    for entry in project["deployments"]:
        registered = by_name.get((entry["name"], entry["entrypoint"]))
        merged = dict(entry)
        if registered is not None:
            merged.pop("schedules", None)  # without any in the file, `prefect deploy` leaves those of the server alone
            merged |= {key: registered[key] for key in ("parameters", "paused")}
        entries.append(merged)
    return {**project, "deployments": entries}


def ask(api: str, method: Literal["GET", "POST", "PATCH"], path: str, json: Any = None) -> Any:
    """Return the answer of Prefect's server, or None where it does not have what is asked for.

    Prefect's client logs in, and repeats a request while the server is busy.

    Args:
        api: address of the server's API.
        method, path, json: of the request.

    Raises:
        DeploymentError: no answer, or one that is an error.
    """
    import httpx
    from prefect.client.orchestration import SyncPrefectClient

    try:
        with SyncPrefectClient(api, auth_string=os.environ.get(CLIENT_AUTH)) as client:
            answer = client.request(method, path, json=json)  # type: ignore[arg-type]
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.NOT_FOUND:
            return None
        reason = " ".join(str(error).split())
        raise DeploymentError(
            f"Prefect's server did not answer ({reason}): see its log prefect.log, and start `shoal serve` again"
        ) from error
    return answer.json() if answer.content else {}


def known_deployments(api: str) -> list[dict[str, Any]]:
    """Return the deployments of a Prefect server, as its API describes them.

    Raises:
        DeploymentError: the server does not answer.
    """
    deployments: list[dict[str, Any]] = ask(api, "POST", "/deployments/filter", {})
    return deployments


def register(
    api: str, project: dict[str, Any], work: Path, prefect: Callable[..., None], *, reset: bool = False
) -> bool:
    """Register every deployment; one that the server knows is updated, but keeps what users set.

    Args:
        api: address of the server's API.
        project: prefect.yaml.
        work: a folder for the file that Prefect gets.
        prefect: runs Prefect's command line in the project's folder.
        reset: take schedules and parameters of all deployments from prefect.yaml.

    Raises:
        DeploymentError: the server does not answer, or refuses.

    Returns:
        Whether schedules and parameters of known deployments were kept.
    """
    known = [] if reset else known_deployments(api)
    path = work / "prefect.yaml"
    path.write_text(yaml.safe_dump(keep_what_users_set(project, known), sort_keys=False))
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(path))
    return bool(known)


def make_pool(api: str, variables: dict[str, str | None], prefect: Callable[..., None]) -> None:
    """Create the work pool unless it is there, and set environment variables for its jobs.

    Args:
        api: address of the server's API.
        variables: set in the environment of every job, or removed where None; other variables stay as they are.
        prefect: runs Prefect's command line.

    Raises:
        DeploymentError: the server does not answer, or refuses.
    """
    path = f"/work_pools/{POOL}"
    pool = ask(api, "GET", path)
    if pool is None:
        prefect("work-pool", "create", POOL, "--type", "process")
        pool = ask(api, "GET", path)
    if pool is None:
        raise DeploymentError(f"Prefect's server has no work pool {POOL} although it made one: see its log prefect.log")
    template = pool["base_job_template"]
    environment = template["variables"]["properties"]["env"]
    merged = {**(environment.get("default") or {}), **variables}
    environment["default"] = {name: value for name, value in merged.items() if value is not None}
    ask(api, "PATCH", path, {"base_job_template": template})


WORKER = f"shoal serve on {socket.gethostname()}"
"""The name of the service's worker."""
UNDER_WAY = ("PENDING", "RUNNING", "CANCELLING")
MESSAGE = "It ended together with `shoal serve`. The deployment's next run with these settings goes on with it."


def end_left_over(api: str) -> list[str]:
    """Mark the flow runs as crashed whose process is gone, before the service's worker starts.

    Where other workers are online none is marked: their processes may be on other machines.

    Args:
        api: address of the server's API.

    Returns:
        The names of the flow runs.

    Raises:
        DeploymentError: the server does not answer.
    """
    online = {"workers": {"status": {"any_": ["ONLINE"]}}}
    workers = ask(api, "POST", f"/work_pools/{POOL}/workers/filter", online)
    if any(worker["name"] != WORKER for worker in workers):
        return []
    wanted = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": list(UNDER_WAY)}}},
    }
    gone = [run for run in ask(api, "POST", "/flow_runs/filter", wanted) if not has_process(run)]
    for run in gone:
        state = {"type": "CRASHED", "name": "Crashed", "message": MESSAGE}
        ask(api, "POST", f"/flow_runs/{run['id']}/set_state", {"state": state})
    return [run["name"] for run in gone]


def has_process(run: dict[str, Any]) -> bool:
    """Return whether the process of a flow run, as the API describes it, still works on this machine."""
    number = str(run.get("infrastructure_pid") or "")
    return number.isdecimal() and psutil.pid_exists(int(number))
