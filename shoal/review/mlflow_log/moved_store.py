"""The embedded MLflow store of a moved home: addresses of files in it are rewritten to the present place.

MLflow keeps an absolute address for the files of each experiment, run and model. The addresses show where the store lay
when they were written. Where that is another place than now, all are rewritten in one transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""The columns of MLflow's tables that hold addresses of files."""


def follow_move(store: Path, file: str) -> list[str]:
    """Rewrite the addresses in a store that was moved.

    Files that are still at the old place, and not at the new one, keep their address.

    Args:
        store: the folder of the store.
        file: the name of its SQLite file there.

    Returns:
        A sentence for each place from which the store was moved.

    Raises:
        sqlite3.Error: the store cannot be read or written.
    """
    with contextlib.closing(sqlite3.connect(store / file, timeout=60, isolation_level=None)) as opened:
        if not moved_from(store, opened):  # cheap enough to check before each run
            return []
        opened.execute("begin immediate")
        try:
            sentences = [_rewrite(opened, old, store) for old in moved_from(store, opened)]
        except BaseException:
            opened.execute("rollback")
            raise
        opened.execute("commit")
    # MLflow caches where each run's files were when this process last asked.
    cache = getattr(sys.modules.get("mlflow.tracking._tracking_service.utils"), "_artifact_repos_cache", {})
    cache.clear()
    return [sentence for sentence in sentences if sentence]


def moved_from(store: Path, opened: sqlite3.Connection) -> list[Path]:
    """Return the folders in which a store lay before, by its experiments' addresses; none where it was not moved.

    Only addresses that Shoal chose count: the folder `artifacts/NAME` of a store. An experiment to which a user gave a
    place of its own keeps it.
    """
    found = set()
    for number, name, address in opened.execute("select experiment_id, name, artifact_location from experiments"):
        folder = local_path(address or "")
        if folder is None or folder.name not in (str(name), str(number)) or folder.parent.name != "artifacts":
            continue
        old = folder.parent.parent
        if old != store and old.name == store.name and (number == 0 or _is_here(folder, old, store)):
            found.add(old)
    return sorted(found)


def local_path(address: str) -> Path | None:
    """Return the path that a `file:` address or an absolute path names; None for other addresses."""
    if address.startswith("/"):
        return Path(address)
    parts = urlsplit(address)
    if parts.scheme != "file" or not parts.path.startswith("/"):
        return None
    return Path(unquote(parts.path))


def _is_here(path: Path, old: Path, store: Path) -> bool:
    """Return whether a file of the old place is at the present place, or at neither."""
    return (store / path.relative_to(old)).exists() or not path.exists()


def _rewrite(opened: sqlite3.Connection, old: Path, store: Path) -> str:
    """Rewrite the addresses that begin with the old place; return a sentence, empty where there were none."""
    count = 0
    left = 0
    for table, column, row, address in list(_addresses(opened)):
        path = local_path(address)
        if path is None or not path.is_relative_to(old):
            continue
        if not _is_here(path, old, store):
            left += 1
            continue
        new_path = store / path.relative_to(old)
        new = str(new_path)
        if not address.startswith("/"):
            new = f"file://{quote(new)}"
        opened.execute(f"update {table} set {column} = ? where rowid = ?", (new, row))
        count += 1
    if not count:
        return ""
    sentence = f"the MLflow store was moved from {old} to {store}: {count} addresses of its files were updated"
    if left:
        sentence += f"; {left} name files that are only at the old place"
    return sentence


def _addresses(opened: sqlite3.Connection) -> Iterator[tuple[str, str, int, str]]:
    """Yield table, column, row and value of every address, without tables that this version of MLflow lacks."""
    for table, column in ADDRESSES:
        if column in {name for _, name, *_ in opened.execute(f"pragma table_info({table})")}:
            for row, value in opened.execute(f"select rowid, {column} from {table} where {column} is not null"):
                yield table, column, row, value
