"""The embedded MLflow store: one SQLite file, created under a lock.

Without the lock, processes that create it at the same moment leave it without its version, or with half of its tables.
A store that cannot be read is refused: runs lose nothing with it, since their folders have everything, and
`shoal model log` logs them again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings import places
from shoal.review.mlflow_log.moved_store import follow_move

FILE = "mlflow.db"
LOCK = ".creating"
EMBEDDED = f"sqlite:///mlflow/{FILE}"
"""The name of the embedded store in a run's record, relative to the home."""


class TrackingStoreError(ShoalError):
    """The embedded store cannot be created or read."""


def store_uri(store: Path) -> str:
    """Return the address of the embedded store in a folder."""
    return f"sqlite:///{store / FILE}"


def ready_store(store: Path) -> str | None:
    """Create the embedded store unless it is there.

    In a store that was moved with its home, the addresses of files are updated
    (`shoal.review.mlflow_log.moved_store`).

    Args:
        store: its folder.

    Returns:
        A sentence on what was changed; None where nothing was.

    Raises:
        TrackingStoreError: the folder cannot be written, or the store cannot be read.
    """
    with _locked(store):
        if not (store / FILE).exists():
            _make(store)
        try:
            moves = follow_move(store, FILE)
        except sqlite3.Error as error:
            raise TrackingStoreError(
                f"the MLflow store {store / FILE} cannot be read ({error}): unless another process holds it, move it "
                "away, and `shoal model log RUN` logs a run again"
            ) from error
    return "; ".join(moves) or None


def recorded_uri(shown: str) -> str:
    """Return the address of a tracking store for a run's record: that of the embedded store is relative.

    Args:
        shown: the address, without secrets.
    """
    if shown == store_uri(places.mlflow_store()):
        return EMBEDDED
    return shown


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    try:
        store.mkdir(parents=True, exist_ok=True)
        file = (store / LOCK).open("a")
    except OSError as error:
        raise TrackingStoreError(f"the MLflow store in {store} cannot be created: {short_text(error)}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(store: Path) -> None:
    """Make a store under another name and rename it when it is whole: nobody sees half of it."""
    from mlflow import MlflowClient

    scratch = store / f".{FILE}.{os.getpid()}.tmp"
    scratch.unlink(missing_ok=True)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{scratch}").search_experiments(max_results=1)
        with contextlib.closing(sqlite3.connect(scratch)) as opened:
            opened.execute("pragma wal_checkpoint(truncate)")
        scratch.rename(store / FILE)
    except OSError as error:
        raise TrackingStoreError(f"the MLflow store in {store} cannot be created: {short_text(error)}") from error
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            (store / f"{scratch.name}{end}").unlink(missing_ok=True)
