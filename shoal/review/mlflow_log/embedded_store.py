"""The embedded MLflow store: one SQLite file, made whole under a lock, and replaced where it is broken.

Processes that make it at the same moment leave it without its version, or with half of its tables, and every later one
fails on it. Runs lose nothing with it: their folders have everything, and resuming one logs it again.
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

from shoal.core.errors import ShoalError, brief
from shoal.review.mlflow_log.moved_store import follow_move

FILE = "mlflow.db"
LOCK = ".creating"
EMBEDDED = f"sqlite:///mlflow/{FILE}"
"""How a run's record names the embedded store: relative to the home."""
WHOLE = ("alembic_version", "experiments", "runs", "metrics", "latest_metrics", "params", "tags", "registered_models")
"""Some tables of MLflow's, from its first to later versions."""

NO_DAMAGE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
)
"""Why a whole store cannot be looked at now: its next user is told the reason, and it is not replaced."""


class TrackingStoreError(ShoalError):
    """The embedded store cannot be made."""


def store_uri(store: Path) -> str:
    """The address of the embedded store in a folder."""
    return f"sqlite:///{store / FILE}"


def broken(store: Path) -> str | None:
    """What is wrong with the embedded store, in a few words; None where it is whole, or not made yet."""
    path = store / FILE
    if not path.exists():
        return None
    try:
        # Not read-only: what a killed process left in the middle of a change SQLite takes back as it opens the file.
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=60)) as opened:
            tables = {name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")}
            missing = [name for name in WHOLE if name not in tables]
            if missing:
                return f"it has no table {missing[0]!r}: making it was cut short"
            revisions = [revision for (revision,) in opened.execute("select version_num from alembic_version")]
            if len(revisions) != 1:
                return f"it names {len(revisions)} versions of itself instead of one"
            newest = newest_revision()
            (runs,) = opened.execute("select count(*) from runs").fetchone()
            if not runs and newest is not None and revisions[0] != newest:
                return f"its tables are of version {revisions[0]} instead of {newest}: making it was cut short"
            (found,) = opened.execute("pragma quick_check(1)").fetchone()
            return None if found == "ok" else f"SQLite finds {found}"
    except sqlite3.Error as error:
        return None if error.sqlite_errorcode & 0xFF in NO_DAMAGE else f"SQLite cannot read it ({brief(error)})"


@lru_cache
def newest_revision() -> str | None:
    """The version of the tables that the installed MLflow makes, read from its files: importing it takes seconds."""
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
    return heads.pop() if len(heads) == 1 else None


def ready_store(store: Path) -> str | None:
    """Make the embedded store where it is not there yet; move a broken one away and make a new one.

    In a store that was moved with its home the addresses of files follow (`shoal.review.mlflow_log.moved_store`).

    Args:
        store: its folder.

    Returns:
        A sentence on what was changed in it; None where nothing was.

    Raises:
        TrackingStoreError: the folder cannot be written.
    """
    with _alone(store):
        moved = None
        if wrong := broken(store):
            moved = _put_aside(store, wrong)
        if not (store / FILE).exists():
            _make(store)
        try:
            said = follow_move(store, FILE)
        except sqlite3.Error as error:
            raise TrackingStoreError(
                f"the MLflow store {store / FILE} cannot be brought up to date: {error}"
            ) from error
    return moved or "; ".join(said) or None


def kept_uri(shown: str, store: Path) -> str:
    """The address of a tracking store as a run's record keeps it: that of the embedded one says nothing of its place.

    Args:
        shown: the address, without secrets.
        store: the folder of the embedded store.
    """
    return EMBEDDED if shown == store_uri(store) else shown


def is_kept_uri(kept: str | None, shown: str, store: Path) -> bool:
    """Whether a record names the tracking store of an address, also one of before the home was moved."""
    if kept is None or shown != store_uri(store):
        return kept == shown
    return kept == EMBEDDED or (kept.startswith("sqlite:///") and kept.endswith(f"/{store.name}/{FILE}"))


@contextlib.contextmanager
def _alone(store: Path) -> Iterator[None]:
    try:
        store.mkdir(parents=True, exist_ok=True)
        file = (store / LOCK).open("a")
    except OSError as error:
        raise TrackingStoreError(f"the MLflow store in {store} cannot be made: {brief(error)}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _put_aside(store: Path, wrong: str) -> str:
    number = 1
    while (aside := store / f"{FILE}.broken-{number}").exists():
        number += 1
    for end in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            (store / f"{FILE}{end}").rename(store / f"{aside.name}{end}")
    (store / FILE).rename(aside)
    # MLflow keeps connections to a file it has opened in this process, wherever that is now.
    for part in ("tracking", "model_registry"):
        opened = getattr(sys.modules.get(f"mlflow.store.{part}.sqlalchemy_store"), "SqlAlchemyStore", None)
        for uri, engine in list(getattr(opened, "_engine_map", {}).items()):
            if uri == store_uri(store):
                engine.dispose()
    return (
        f"the MLflow store {store / FILE} was broken ({wrong}): it is now {aside}, and a new one was made; "
        "`shoal run --resume RUN` logs an earlier run again"
    )


def _make(store: Path) -> None:
    """A new store, under another name until it is whole: who does not ask for the lock sees all of it or nothing."""
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
        raise TrackingStoreError(f"the MLflow store in {store} cannot be made: {brief(error)}") from error
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            (store / f"{scratch.name}{end}").unlink(missing_ok=True)
