"""The embedded MLflow store: one SQLite file, created under a lock, and replaced where it is broken.

Without the lock, processes that create it at the same moment leave it without its version, or with half of its tables,
and every later process fails on it. Runs lose nothing with it: their folders have everything, and `shoal log` logs them
again.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from shoal.core.errors import ShoalError, short_text
from shoal.engine.settings import places
from shoal.review.mlflow_log.moved_store import follow_move

FILE = "mlflow.db"
LOCK = ".creating"
EMBEDDED = f"sqlite:///mlflow/{FILE}"
"""The name of the embedded store in a run's record, relative to the home."""
REQUIRED_TABLES = (
    "alembic_version",
    "experiments",
    "runs",
    "metrics",
    "latest_metrics",
    "params",
    "tags",
    "registered_models",
)
"""Tables that every version of MLflow has."""

PASSING_ERRORS = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
)
"""Why a whole store cannot be read now: its next user gets the reason in an error, and it is not replaced."""


class TrackingStoreError(ShoalError):
    """The embedded store cannot be created."""


def store_uri(store: Path) -> str:
    """Return the address of the embedded store in a folder."""
    return f"sqlite:///{store / FILE}"


def damage_of(store: Path) -> str | None:
    """Return the damage of the embedded store, in a few words; None where it is whole, or not made yet."""
    path = store / FILE
    if not path.exists():
        return None
    try:
        # Not read-only: as it opens the file, SQLite takes back a change that a killed process left unfinished.
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=60)) as opened:
            tables = {name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")}
            missing = [name for name in REQUIRED_TABLES if name not in tables]
            if missing:
                return f"it has no table {missing[0]!r}: its creation was cut short"
            revisions = [revision for (revision,) in opened.execute("select version_num from alembic_version")]
            if len(revisions) != 1:
                return f"it names {len(revisions)} versions of itself instead of one"
            newest = newest_revision()
            (runs,) = opened.execute("select count(*) from runs").fetchone()
            if not runs and newest is not None and revisions[0] != newest:
                return f"its tables are of version {revisions[0]} instead of {newest}: its creation was cut short"
            (found,) = opened.execute("pragma quick_check(1)").fetchone()
            if found != "ok":
                return f"SQLite finds {found}"
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in PASSING_ERRORS:
            return f"SQLite cannot read it ({short_text(error)})"
    return None


@lru_cache
def newest_revision() -> str | None:
    """Return the version of the installed MLflow's tables, read from its files: importing it takes seconds."""
    spec = importlib.util.find_spec("mlflow")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "store" / "db_migrations" / "versions"
    texts = [path.read_text() for path in folder.glob("*.py")]
    made, before = (
        {name for text in texts for name in re.findall(rf"""^{key}\s*=\s*["'](\w+)["']""", text, re.MULTILINE)}
        for key in ("revision", "down_revision")
    )
    heads = made - before
    if len(heads) != 1:
        return None
    return str(heads.pop())


def ready_store(store: Path) -> str | None:
    """Create the embedded store unless it is there; move a broken one away and create a new one.

    In a store that was moved with its home, the addresses of files are updated
    (`shoal.review.mlflow_log.moved_store`).

    Args:
        store: its folder.

    Returns:
        A sentence on what was changed; None where nothing was.

    Raises:
        TrackingStoreError: the folder cannot be written.
    """
    with _locked(store):
        replaced = None
        if damage := damage_of(store):
            replaced = _put_aside(store, damage)
        if not (store / FILE).exists():
            _make(store)
        try:
            moves = follow_move(store, FILE)
        except sqlite3.Error as error:
            raise TrackingStoreError(
                f"the MLflow store {store / FILE} cannot be brought up to date: {error}"
            ) from error
    return replaced or "; ".join(moves) or None


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


def _put_aside(store: Path, damage: str) -> str:
    number = 1
    while (aside := store / f"{FILE}.broken-{number}").exists():
        number += 1
    for end in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            (store / f"{FILE}{end}").rename(store / f"{aside.name}{end}")
    (store / FILE).rename(aside)
    # MLflow keeps connections to a file that it opened in this process, even if the file was moved.
    for part in ("tracking", "model_registry"):
        opened = getattr(sys.modules.get(f"mlflow.store.{part}.sqlalchemy_store"), "SqlAlchemyStore", None)
        for uri, engine in list(getattr(opened, "_engine_map", {}).items()):
            if uri == store_uri(store):
                engine.dispose()
    return (
        f"the MLflow store {store / FILE} was broken ({damage}): it is now {aside}, and a new one was created; "
        "`shoal log RUN` logs an earlier run again"
    )


def _make(store: Path) -> None:
    """Make a store under another name and rename it when it is whole: nobody sees half of it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    scratch = store / f".{FILE}.{os.getpid()}.tmp"
    scratch.unlink(missing_ok=True)
    try:
        made = SqlAlchemyStore(f"sqlite:///{scratch}", (store / "artifacts").as_uri())
        made.engine.dispose()
        with contextlib.closing(sqlite3.connect(scratch)) as opened:
            opened.execute("pragma wal_checkpoint(truncate)")
        scratch.rename(store / FILE)
    except OSError as error:
        raise TrackingStoreError(f"the MLflow store in {store} cannot be created: {short_text(error)}") from error
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            (store / f"{scratch.name}{end}").unlink(missing_ok=True)
