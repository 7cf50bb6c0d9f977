"""The status of a run: the record in status.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUNNING = "running"
FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"


@dataclass(frozen=True)
class FlowRun:
    """The Prefect flow run that worked on a run last: its id, and its web page, if it has one."""

    flow_run: str
    page: str | None


@dataclass(frozen=True)
class Tracking:
    """Where a run is shown.

    Args:
        mlflow_run: id of its run in MLflow.
        mlflow_uri: address of that MLflow, without secrets.
        prefect: the flow run that worked on it last.
    """

    mlflow_run: str | None = None
    mlflow_uri: str | None = None
    prefect: FlowRun | None = None


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Args:
        state: running, finished, interrupted or failed.
        round: the last finished round.
        message: why the run ended early; empty: it did not.
        pid: id of the process that worked on it last.
        updated: time of this status, in seconds since the epoch.
        rounds: planned number of rounds of a running run.
        quarantined: clients that take no more part, because their messages were refused too often.
        weights_sha256: digest of the final server state of a finished run.
        files: digests of the tables and of clusters.json of a finished run, by name.
        events_bytes: size of the event log of a finished run.
        tracking: where it is shown.
    """

    state: str
    round: int
    message: str = ""
    pid: int | None = None
    updated: float | None = None
    rounds: int | None = None
    quarantined: tuple[int, ...] | None = None
    weights_sha256: str | None = None
    files: Mapping[str, str] | None = None
    events_bytes: int | None = None
    tracking: Tracking = Tracking()

    def digest_of(self, name: str) -> str | None:
        """Return the digest of a file of a finished run; None: it has no such file."""
        return (self.files or {}).get(name)

    @property
    def is_finished(self) -> bool:
        """Whether all rounds of the run are done."""
        return self.state == FINISHED
