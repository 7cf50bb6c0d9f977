"""The tables that a set was made of, as its manifest remembers them: names, digests, and the columns with a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.records import record_to_json
from shoal.data.by_client import file_sha256
from shoal.data.prepared import Prepared

TABLES = "tables"
"""Entry of a manifest's `extra`: name and sha256 of each table that was added, in this order."""
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


def table_origin(path: Path, onto: Prepared | None, client: str, label: str | None) -> dict[str, Any]:
    """Return the entries of a manifest that say from which tables the samples are.

    Args:
        path: the table that is added.
        onto: the set that it is appended to, whose columns stay; None: a new set.
        client, label: the columns of a new set.
    """
    tables = [[path.name, file_sha256(path)]]
    if onto is None:
        return {TABLES: tables, ROLES: record_to_json(TableRoles(client, label or ""))}
    return {TABLES: [*onto.manifest.extra.get(TABLES, []), *tables]}


def known_tables(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of each table of a set, by name: that of its newest version."""
    return dict(extra.get(TABLES, []))
