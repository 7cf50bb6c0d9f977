"""The embedded MLflow store: one SQLite file in the home, with its artifacts beside it.

A store that cannot be read is refused: runs lose nothing with it, since their folders have everything, and
`shoal model log` logs them again.

MLflow keeps absolute addresses of artifacts. The file `place.txt` says where the store lay when it was used last; in a
home that was moved, addresses that begin with that place get the present one.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from pathlib import Path

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings import places

FILE = "mlflow.db"
PLACE = "place.txt"
EMBEDDED = f"sqlite:///mlflow/{FILE}"
"""The name of the embedded store in a run's record, relative to the home."""
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""The columns of MLflow's tables that hold addresses of artifacts."""


class TrackingStoreError(ShoalError):
    """The embedded store cannot be created or read."""


def store_uri(store: Path) -> str:
    """Return the address of the embedded store in a folder."""
    return f"sqlite:///{store / FILE}"


def recorded_uri(shown: str) -> str:
    """Return the address of a tracking store for a run's record: that of the embedded store is relative.

    Args:
        shown: the address, without secrets.
    """
    if shown == store_uri(places.mlflow_store()):
        return EMBEDDED
    return shown


def ready_store(store: Path) -> None:
    """Create the embedded store unless it is there, and update its addresses if it was moved.

    Args:
        store: its folder.

    Raises:
        TrackingStoreError: the folder cannot be written, or the store cannot be read.
    """
    file = store / FILE
    try:
        store.mkdir(parents=True, exist_ok=True)
        # Processes that create it at the same moment would each add half of its tables.
        with (store / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                _make(store)
            with contextlib.closing(sqlite3.connect(file, timeout=60)) as database, database:
                _follow_move(store, database)
    except (OSError, sqlite3.Error) as error:
        raise TrackingStoreError(
            f"the MLflow store {file} cannot be used ({short_text(error)}): unless another process holds it, move it "
            "away, and `shoal model log RUN` logs a run again"
        ) from error


def _make(store: Path) -> None:
    """Have MLflow make its tables."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=store_uri(store)).search_experiments(max_results=1)


def _follow_move(store: Path, database: sqlite3.Connection) -> None:
    """Replace the place where the store lay before by the present one, at the beginning of each address."""
    database.execute("select count(*) from sqlite_master")  # refuses a file that is no database
    record = store / PLACE
    here = store.as_uri()
    before = record.read_text() if record.exists() else here
    if before != here:
        for table, column in ADDRESSES:
            database.execute(
                f"update {table} set {column} = ? || substr({column}, ?) where instr({column}, ?) = 1",
                (here, len(before) + 1, f"{before}/"),
            )
        database.commit()
    record.write_text(here)
