"""How far a run is: the record in status.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RUNNING = "running"
FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"
STOPPED = "stopped"
"""An observer ended it, such as a search over settings; it can be resumed like an interrupted one."""


@dataclass(frozen=True)
class Status:
    """How far a run is.

    Args:
        state: running, finished, interrupted, failed or stopped.
        round: the last round that is done.
        message: why the run ended early; empty where it did not.
        pid: the process that worked on it last.
        updated: when, in seconds since the epoch.
        rounds: how many rounds a running run is to have.
        quarantined: the clients that are not asked any more, because their messages were refused too often.
        weights_sha256: digest of the final server state of a finished run.
        tables_sha256: digest of each table of a finished run, by its name.
        events_bytes: size of the event log of a finished run.
        clusters_sha256: digest of clusters.json of a finished run.
    """

    state: str
    round: int
    message: str = ""
    pid: int | None = None
    updated: float | None = None
    rounds: int | None = None
    quarantined: tuple[int, ...] | None = None
    weights_sha256: str | None = None
    tables_sha256: Mapping[str, str] | None = None
    events_bytes: int | None = None
    clusters_sha256: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end."""
        return self.state == FINISHED
