"""What a run and its hosts tell each other through Prefect's server.

A request to a host is a background task run, and its text an artifact of that run; so is the answer. Both are removed
when the answer was taken. As long as a request's artifact is there somebody waits for the answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

import httpx
from prefect import runtime
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import TaskRunCreate
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL
from prefect.states import Scheduled, to_state_create

from core.errors import ShoalError
from engine.addresses import masked
from tasks.hosts import Host

UNREACHED = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError)
"""What is raised where the server does not answer, or answers something else."""
REQUEST, ANSWER = "shoal-request", "shoal-answer"
"""Types of artifacts."""
LOST = "lost"
"""The key of an answer that says why a slot of the host was lost."""
WAIT = 15.0
"""Seconds that one answer of the server may take."""
BUSY = 10.0
"""Seconds for a server whose database is locked: of one on SQLite it is for some milliseconds now and then."""
MANY = 100
"""Things that the server is asked about at once; it tells of 200 at most."""
WHERE = "such as http://127.0.0.1:4200/api while `shoal serve` runs"


class NoServer(ShoalError):
    """No Prefect server is named, or it cannot be talked to."""


class Channel:
    """A connection to the Prefect server of PREFECT_API_URL; may be used by many threads.

    Raises:
        NoServer: none is named, or what is there is no Prefect server that lets us in.
    """

    def __init__(self) -> None:
        # The environment of now: Prefect reads it once, when it is imported.
        api = os.environ.get("PREFECT_API_URL") or PREFECT_API_URL.value()
        if not api:
            raise NoServer(f"PREFECT_API_URL is not set: set it to the address of a Prefect server, {WHERE}")
        self.url = masked(api)
        # Not Prefect's client of the moment, which is closed with the flow run that it belongs to.
        self._client = SyncPrefectClient(
            api,
            auth_string=os.environ.get("PREFECT_API_AUTH_STRING") or secret(PREFECT_API_AUTH_STRING.value()),
            api_key=secret(PREFECT_API_KEY.value()),
            httpx_settings={"timeout": WAIT, "event_hooks": {"response": [again_soon]}},
        ).__enter__()
        # One after another, as a database of one file takes them.
        self._writing = threading.Lock()
        try:
            self.hosts()
        except UNREACHED as error:
            self.close()
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
            if status in (401, 403):
                why = "asks for a password: set PREFECT_API_AUTH_STRING to user:password"
            else:
                said = (masked(str(error)).splitlines() or [""])[0]
                why = (
                    f"does not answer as a Prefect server ({type(error).__name__}: {said[:120]}): it should be {WHERE}"
                )
            raise NoServer(f"PREFECT_API_URL: {self.url} {why}") from None

    def close(self) -> None:
        """End the connection."""
        self._client.__exit__(None, None, None)

    def _send(self, method: Any, path: Any, **arguments: Any) -> httpx.Response:
        end = time.monotonic() + BUSY
        while True:
            try:
                return self._client.request(method, path, **arguments)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 503 or time.monotonic() > end:
                    raise

    def _ask(self, path: Any, body: Any) -> Any:
        return self._send("POST", path, json=body).json()

    def _write(self, method: Any, path: Any, **arguments: Any) -> Any:
        with self._writing:
            return self._send(method, path, **arguments)

    # --- of whoever asks

    def hosts(self) -> dict[str, Host]:
        """The hosts that are connected now, by the keys of their tasks."""
        found = self._ask("/task_workers/filter", {})
        if not isinstance(found, list):
            raise ValueError("another kind of server")
        keys = {key for worker in found for key in worker["task_keys"]}
        return {key: host for key in sorted(keys) if (host := Host.of(key)) is not None}

    def submit(self, key: str, name: str, text: str) -> tuple[UUID, str]:
        """Give a host a request.

        Args:
            key: of the host's task.
            name: of the task run, for people.
            text: the request.

        Returns:
            The ids of the task run and of the request's artifact.
        """
        run = uuid4()
        artifact = self._artifact(REQUEST, run, text)
        state: Any = Scheduled()
        state.state_details.deferred = True  # for a task worker
        flow_run = runtime.flow_run.id
        created = TaskRunCreate(
            id=run,
            name=name,
            task_key=key,
            dynamic_key=str(run),
            flow_run_id=UUID(flow_run) if flow_run else None,
            state=to_state_create(state),
        )
        self._write("POST", "/task_runs/", json=created.model_dump(mode="json"))
        return run, artifact

    def answers(self, runs: Iterable[UUID]) -> dict[UUID, tuple[str, str]]:
        """The answers that are there, of some task runs: the id of the artifact, and the text."""
        found = {}
        for some in parts(runs):
            where = {"type": {"any_": [ANSWER]}, "task_run_id": {"any_": some}}
            for each in self._ask("/artifacts/filter", {"artifacts": where}):
                found[UUID(each["task_run_id"])] = each["id"], each["data"]
        return found

    def states(self, runs: Iterable[UUID]) -> dict[UUID, str]:
        """The types of the states of some task runs, such as SCHEDULED or RUNNING."""
        found = {}
        for some in parts(runs):
            for each in self._ask("/task_runs/filter", {"task_runs": {"id": {"any_": some}}}):
                found[UUID(each["id"])] = each["state_type"]
        return found

    def remove(self, artifact: str) -> None:
        """Remove an artifact, if it is there."""
        try:
            self._write("DELETE", "/artifacts/{id}", path_params={"id": artifact})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise

    def cancel(self, run: UUID) -> None:
        """Let people see that nobody waits for a task run any more."""
        state = {"type": "CANCELLED", "message": "nobody waits for it any more"}
        self._write("POST", "/task_runs/{id}/set_state", path_params={"id": run}, json={"state": state, "force": True})

    # --- of a host

    def request(self, run: UUID) -> str | None:
        """The request of a task run; None where nobody waits for its answer any more."""
        found = self._ask("/artifacts/filter", {"artifacts": artifacts_of(run, REQUEST)})
        return found[0]["data"] if found else None

    def wanted(self, run: UUID) -> bool:
        """Whether somebody waits for the answer of a task run."""
        return bool(self._ask("/artifacts/count", {"artifacts": artifacts_of(run, REQUEST)}))

    def answer(self, run: UUID, text: str) -> None:
        """Answer the request of a task run."""
        self._artifact(ANSWER, run, text)

    def _artifact(self, kind: str, run: UUID, text: str) -> str:
        made = self._write("POST", "/artifacts/", json={"type": kind, "task_run_id": str(run), "data": text})
        return str(made.json()["id"])


def again_soon(response: httpx.Response) -> None:
    """Have Prefect's client ask again at once where a database was locked; by itself it would wait two seconds."""
    if response.status_code == 503:
        response.headers["Retry-After"] = "0.02"


def secret(value: Any) -> str | None:
    """A setting of Prefect's that may be wrapped, lest it be printed."""
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def artifacts_of(run: UUID, kind: str) -> dict[str, Any]:
    """The filter of the artifacts of a kind that a task run has."""
    return {"type": {"any_": [kind]}, "task_run_id": {"any_": [str(run)]}}


def parts(runs: Iterable[UUID]) -> list[list[str]]:
    """Ids of task runs, not too many at once."""
    ids = [str(run) for run in runs]
    return [ids[start : start + MANY] for start in range(0, len(ids), MANY)]
