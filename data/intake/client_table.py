"""A table whose rows name their client, and perhaps their label; and the names themselves, as a set spells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.digests import file_digest
from shoal.core.errors import DataError
from shoal.data.intake.names import names_of
from shoal.data.intake.options import AddOptions
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


@dataclass(frozen=True)
class ClientTable:
    """The rows of a table.

    Attributes:
        columns: all but those of clients and labels.
        client: the client of each row, str (rows,).
        label: the label of each row, str (rows,); None without labels.
        client_column, label_column: as the table spells them; empty without labels.
    """

    columns: pd.DataFrame
    client: np.ndarray
    label: np.ndarray | None
    client_column: str
    label_column: str = ""


def read_client_table(
    path: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake, text: tuple[str, ...] = ()
) -> ClientTable:
    """Read a table, and the names of its clients and labels.

    Args:
        path: the table.
        onto: the set to append to, whose names keep their spelling.
        options: of the user.
        intake: notes of names and columns in another spelling.
        text: further columns whose values are names.

    Raises:
        DataError: see `shoal.data.intake.own.add`.
    """
    wanted = options.client_column
    named = [column for column in (wanted, options.label_column, *text) if column]
    table = read_table(path, named, intake)
    client_column = find_column(table, wanted, path, "--client-column")
    client = client_names(table[client_column], path, onto, intake)
    if not options.label_column:
        return ClientTable(table.drop(columns=client_column), client, None, client_column)
    label_column = find_column(table, options.label_column, path, "--label-column")
    label = label_names(table[label_column], path, onto, intake)
    return ClientTable(table.drop(columns=[client_column, label_column]), client, label, client_column, label_column)


def client_names(column: pd.Series, path: Path, onto: PreparedSet | None, intake: Intake) -> np.ndarray:
    """Return the client of each row, str (rows,), as the set to append to spells it."""
    return names_of(column, path, "client", () if onto is None else onto.manifest.extra["clients"], intake)


def label_names(column: pd.Series, path: Path, onto: PreparedSet | None, intake: Intake) -> np.ndarray:
    """Return the label of each row, str (rows,), as the set to append to spells it."""
    return names_of(column, path, "label", () if onto is None else onto.manifest.class_names, intake)


TABLES = "tables"
"""Entry of a manifest's `extra`: name and sha256 of each table or file of arrays that was added, in this order."""
ROLES = "table_roles"
"""Entry of a manifest's `extra`: the columns of a set's tables that name the client and the label; no label: empty."""


def table_origin(path: Path, onto: PreparedSet | None, client: str, label: str) -> dict[str, Any]:
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
        origin[ROLES] = {"client": client, "label": label}
    return origin


def file_origin(files: Mapping[str, Path], onto: PreparedSet | None) -> dict[str, Any]:
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
        digest = file_digest(path)
        other = name_of.setdefault(digest, name)
        if other != name:
            raise DataError(f"{path} has the same bytes as {other}, which is taken already: leave one of them out")
        entries.append([name, digest])
    return {TABLES: entries}


def known_tables(extra: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of each file of a set, by name: that of its newest version."""
    return dict(extra.get(TABLES, []))
