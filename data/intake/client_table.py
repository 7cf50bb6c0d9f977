"""A table whose rows name their client, and perhaps their label; and the names themselves, as a set spells them.

The files that a set was made of, as its manifest remembers them: names, digests, and the columns with a role.

Labels of files: a CSV with the columns file and label, one row a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, first_of, shown
from shoal.core.records import record_to_json
from shoal.data.intake.folder_files import one_spelling, spellings
from shoal.data.intake.names import names_of
from shoal.data.intake.options import AddOptions
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.by_client import file_sha256
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared


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
    path: Path, onto: Prepared | None, options: AddOptions, intake: Intake, text: tuple[str, ...] = ()
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


def client_names(column: pd.Series, path: Path, onto: Prepared | None, intake: Intake) -> np.ndarray:
    """Return the client of each row, str (rows,), as the set to append to spells it."""
    return names_of(column, path, "client", () if onto is None else onto.manifest.extra["clients"], intake)


def label_names(column: pd.Series, path: Path, onto: Prepared | None, intake: Intake) -> np.ndarray:
    """Return the label of each row, str (rows,), as the set to append to spells it."""
    return names_of(column, path, "label", () if onto is None else onto.manifest.class_names, intake)


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


def labels_by_file(path: Path, files: Sequence[str], onto: Prepared | None, intake: Intake) -> dict[str, str]:
    """Return the labels of a table by file, in its order; files may be missing, and others may be there.

    The table may spell a file with backslashes or in another Unicode form.

    Args:
        path: the CSV.
        files: known ones, with /; a file that the table spells otherwise has the name that it has here.
        onto: a set whose labels keep their spelling.
        intake: notes of labels in another spelling.

    Raises:
        DataError: a file has two labels.
    """
    table = read_table(path, text=("file", "label"))
    columns = [find_column(table, column, path, "a column file and a column label") for column in ("file", "label")]
    table = table.dropna(subset=columns)
    labels = label_names(table[columns[1]], path, onto, intake)
    there = spellings(files)
    names = [Path(str(given).strip().replace("\\", "/")).as_posix() for given in table[columns[0]]]
    names = [there.get(one_spelling(name), name) for name in names]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(f"{path} labels these files more than once: {some_of(repeated)}")
    return dict(zip(names, labels.tolist(), strict=True))


def read_labels(path: Path, files: Sequence[str], onto: Prepared | None, intake: Intake) -> list[str]:
    """Return the label of each file; see `labels_by_file`.

    Args:
        path: the CSV.
        files: paths below the folder of images, with /.
        onto: the set that the images are appended to; its labels keep their spelling.
        intake: notes of labels in another spelling, and of other files.

    Raises:
        DataError: a file has no label or two.
    """
    label_of = labels_by_file(path, files, onto, intake)
    unlabelled = [file for file in files if file not in label_of]
    if unlabelled:
        raise DataError(f"{path} has no label for {len(unlabelled)} samples: {some_of(unlabelled)}")
    if others := sorted(set(label_of) - set(files)):
        intake.note("table with labels of other files", path.name, some_of(others))
    return [label_of[file] for file in files]


def some_of(names: Sequence[str]) -> str:
    """Return the first of some names, for a message."""
    return first_of([shown(name, 200) for name in names])
