"""The work pool and the deployments of prefect.yaml, registered by Prefect's own `prefect deploy`.

Changes that users made on Prefect's page are kept: `prefect deploy` gets a file with the server's schedules, parameters
and the like for each deployment that the server knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import yaml

from shoal.core.errors import ShoalError
from shoal.engine.settings.yaml_text import read_yaml_file
from shoal.tasks.prefect.login import CLIENT_AUTH

POOL = "shoal"


class DeploymentError(ShoalError):
    """prefect.yaml is missing or cannot be used, or the server refuses its content."""


def read_project(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's prefect.yaml.

    Raises:
        DeploymentError: there is none, or it holds no deployments.
    """
    path = folder / "prefect.yaml"
    if not path.is_file():
        raise DeploymentError(
            f"no prefect.yaml in {folder}: start `shoal serve` in the project's folder, or make one with "
            "`shoal init FOLDER`"
        )
    project = read_yaml_file(path, "", DeploymentError)
    if not isinstance(project, dict) or not project.get("deployments"):
        raise DeploymentError(
            f"{path} names no deployments: add one under `deployments`, or copy the file that `shoal init` makes"
        )
    entries = project["deployments"]
    if not isinstance(entries, list):
        raise DeploymentError(f"{path}: deployments is a {type(entries).__name__}, expected a list of deployments")
    for number, entry in enumerate(entries, 1):
        if wrong := _wrong(entry):
            raise DeploymentError(f"{path}: deployment {number} {wrong}")
    return project


def _wrong(entry: Any) -> str | None:
    """Return what a deployment lacks; None where it is complete."""
    if not isinstance(entry, dict):
        return f"is a {type(entry).__name__}, expected keys such as name and entrypoint"
    for key in ("name", "entrypoint"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            return f"has no {key}"
    if not isinstance(entry.get("work_pool"), dict):
        return f"has no work_pool: expected work_pool: {{name: {POOL}}}"
    if not isinstance(entry.get("parameters") or {}, dict):
        return "has parameters that are not keys and values"
    schedules = entry.get("schedules") or []
    if not isinstance(schedules, list) or not all(isinstance(each, dict) for each in schedules):
        return "has schedules that are not a list such as - {cron: '0 3 * * *'}"
    return None


def keep_what_users_set(project: dict[str, Any], known: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return a prefect.yaml that changes nothing that users can set on Prefect's page.

    Args:
        project: prefect.yaml.
        known: the server's deployments, as its API describes them.

    Returns:
        The changed prefect.yaml, and the names of deployments whose schedules or parameters differ from the file's.
    """
    by_name = {(each["name"], each["entrypoint"]): each for each in known}
    entries = []
    differing = []
    for entry in project["deployments"]:
        registered = by_name.get((entry["name"], entry["entrypoint"]))
        if registered is None:
            entries.append(entry)
            continue
        parameters = registered["parameters"]
        if _schedules(entry.get("schedules") or []) != _schedules(registered["schedules"]) or (
            (entry.get("parameters") or {}) != parameters
        ):
            differing.append(entry["name"])
        # Without schedules of its own in the file, `prefect deploy` leaves those of the server alone.
        merged = {key: value for key, value in entry.items() if key != "schedules"}
        merged |= {"parameters": parameters, "paused": registered["paused"]}
        merged["work_pool"] = {**entry["work_pool"], "job_variables": registered["job_variables"]}
        limit = registered.get("global_concurrency_limit")
        if limit:
            merged["concurrency_limit"] = {"limit": limit["limit"], **(registered.get("concurrency_options") or {})}
        entries.append(merged)
    return {**project, "deployments": entries}, differing


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
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.NOT_FOUND:
            return None
        raise DeploymentError(_unanswered(error)) from error
    except httpx.HTTPError as error:
        raise DeploymentError(_unanswered(error)) from error
    return answer.json() if answer.content else {}


def _unanswered(error: Exception) -> str:
    reason = " ".join(str(error).split())
    return f"Prefect's server did not answer ({reason}): see its log prefect.log, and start `shoal serve` again"


def known_deployments(api: str) -> list[dict[str, Any]]:
    """Return the deployments of a Prefect server, as its API describes them.

    Raises:
        DeploymentError: the server does not answer.
    """
    found: list[dict[str, Any]] = ask(api, "POST", "/deployments/filter", {})
    return found


def _schedules(listed: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return schedules of prefect.yaml or of the API in a form in which the two can be compared."""
    found = []
    for each in listed:
        rule = each.get("schedule", each)
        times = tuple(rule.get(key) for key in ("cron", "interval", "rrule"))
        timezone = rule.get("timezone") or "UTC"  # which the server writes where the file names none
        found.append((*times, timezone, each.get("active") is not False))
    return sorted(found, key=str)


def register(
    api: str, project: dict[str, Any], work: Path, prefect: Callable[..., None], *, reset: bool = False
) -> list[str]:
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
        Names of deployments whose schedules or parameters differ from the file's and were kept.
    """
    known = known_deployments(api)
    kept: dict[str, Any] = project
    differing: list[str] = []
    if not reset:
        kept, differing = keep_what_users_set(project, known)
    path = work / "prefect.yaml"
    path.write_text(yaml.safe_dump(kept, sort_keys=False))
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(path))
    return differing


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
