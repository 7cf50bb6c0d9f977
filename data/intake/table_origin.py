"""The files that a set was made of, as its manifest remembers them: names, digests, and the columns with a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import DataError
from shoal.core.records import record_to_json
from shoal.data.sets.by_client import file_sha256
from shoal.data.sets.prepared import Prepared

TABLES = "tables"
"""Entry of a manifest's `extra`: name and sha256 of each table or file of arrays that was added, in this order."""
ROLES = "table_roles"
"""Entry of a manifest's `extra`: `TableRoles`."""


@dataclass(frozen=True)
class TableRoles:
    """The columns of a set's tables that are no features.

    Attributes:
        client: the client of a row.
        label: the label of a row; empty without labels.
    """

    client: str
    label: str = ""


def table_origin(path: Path, onto: Prepared | None, client: str, label: str) -> dict[str, Any]:
    """Return the entries of a manifest that say from which tables the samples are.

    Args:
        path: the table that is added.
        onto: the set that it is appended to, whose columns stay; None: a new set.
        client, label: the columns of a new set; `label` is empty without labels.

    Raises:
        DataError: the set has the table under another name.
    """
    origin = file_origin({path.name: path}, onto)
    if onto is None:
        origin[ROLES] = record_to_json(TableRoles(client, label))
    return origin


def file_origin(files: Mapping[str, Path], onto: Prepared | None) -> dict[str, Any]:
    """Return the entry of a manifest that says from which files the samples are.

    Args:
        files: what is added, by the name under which the set knows it.
        onto: the set that it is appended to; None: a new set.

    Raises:
        DataError: two files have the same bytes, or the set has a file under another name.
    """
    entries = [] if onto is None else list(onto.manifest.extra.get(TABLES, []))
    name_of = {digest: name for name, digest in entries}
    for name, path in files.items():
        digest = file_sha256(path)
        other = name_of.setdefault(digest, name)
        if other != name:
            raise DataError(f"{path} has the same bytes as {other}, which is taken already: leave one of them out")
        entries.append([name, digest])
    return {TABLES: entries}


def known_tables(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of each file of a set, by name: that of its newest version."""
    return dict(extra.get(TABLES, []))
