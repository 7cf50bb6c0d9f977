"""A user's table as a batch of vectors: the client, the label and the features of each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.core.records import record_to_json
from shoal.data.intake.columns import feature_columns
from shoal.data.intake.names import client_numbers, names_of
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_store import Batch, known_files
from shoal.data.intake.possible_labels import possible_labels
from shoal.data.intake.spelling import tidy
from shoal.data.intake.table_coding import (
    CODING,
    COLUMNS,
    TableCoding,
    coding_of,
    encode,
    find_coding,
    kind_of_columns,
    note_kind,
    with_fills,
)
from shoal.data.intake.table_origin import table_origin
from shoal.data.intake.tables import find_column, read_table
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Prepared
from shoal.data.sets.wording import first_of

LEFT_OUT = "columns_left_out"
"""Entry of a manifest's `extra` with the columns that are not features of the set."""


def read_rows(
    path: Path, onto: Prepared | None = None, options: AddOptions | None = None, intake: Intake | None = None
) -> Batch:
    """Return the rows of a table as they would be stored; nothing is written.

    Args:
        path: the table.
        onto: the set to append to: the rows must fit it.
        options: of the user.
        intake: notes of what is taken, adapted and left out.

    Raises:
        DataError: see `shoal.data.intake.own.add`.
    """
    options = options or AddOptions()
    client_column = options.client_column
    label_column = options.label_column
    notes = intake or Intake()
    table = read_table(path, [client_column, *([label_column] if label_column else [])], notes)
    wanted = client_column
    client_column = find_column(table, wanted, path, "--client-column")
    if client_column != tidy(wanted):
        notes.note(f"column taken as {shown(wanted)}, but for capitals", client_column)
    reserved = [client_column]
    known_clients: list[str] = []
    known_labels: list[str] = []
    if onto is not None:
        known_clients = list(onto.manifest.extra["clients"])
        known_labels = list(onto.manifest.class_names)
    client, names = client_numbers(table[client_column], path, known_clients, notes)
    label: np.ndarray | None = None
    if label_column:
        label_column = find_column(table, label_column, path, "--label-column")
        reserved.append(label_column)
        label = names_of(table[label_column], path, "label", known_labels, notes)
    table = table.drop(columns=reserved)
    coding = _coding(table, path, onto, options, notes)
    x, kept = encode(table, coding, path, notes)
    _refuse_bare(names, client[kept], path)
    extra = table_origin(path, onto, client_column, label_column)
    if onto is None:
        kind = kind_of_columns(coding, x)
        note_kind(kind, coding, notes)
        extra |= _extra(table, coding, kind) | possible_labels(table, coding.columns, options, notes)
    files = [f"{path.name}:{row}" for row in np.flatnonzero(kept)]
    refuse_known_rows(files, path, onto)
    notes.see("rows", len(kept))
    notes.take("rows", len(x))
    return Batch(
        "vector",
        x,
        None if label is None else [str(name) for name in label[kept]],
        [names[k] for k in client[kept]],
        names,
        files,
        source=f"table {path.name}, {len(x)} rows of {len(names)} clients",
        licence=options.licence,
        extra=extra,
        intake=notes,
    )


def _extra(table: pd.DataFrame, coding: TableCoding, kind: str) -> dict[str, Any]:
    """Return the further entries of the manifest of a new set."""
    extra = {"features": coding.features(), CODING: record_to_json(coding), COLUMNS: kind}
    if len(table.columns) > len(coding.columns):
        extra[LEFT_OUT] = [str(column) for column in table.columns if column not in coding.columns]
    return extra


def _refuse_bare(names: Sequence[str], client: np.ndarray, path: Path) -> None:
    """Refuse a table in which every row of some client was left out."""
    bare = [name for number, name in enumerate(names) if number not in set(client.tolist())]
    if bare:
        raise DataError(f"{path}: every row of these clients has a missing value: {_some(bare)}: give --missing mean")


def refuse_known_rows(files: Sequence[str], path: Path, onto: Prepared | None) -> None:
    """Refuse rows whose name the set knows already.

    Args:
        files: the names of the rows.
        path: the table, or the file or folder of arrays.
        onto: the set to append to; None: there is none.

    Raises:
        DataError: names the file.
    """
    if onto is not None and not set(files).isdisjoint(known_files(onto)):
        raise DataError(
            f"{onto.manifest.name!r} has rows of {path.name} already: give the new rows, and only those, in a "
            "file of another name"
        )


def _coding(table: pd.DataFrame, path: Path, onto: Prepared | None, options: AddOptions, intake: Intake) -> TableCoding:
    """Return the coding of a new set, or that of the set to append to, after checking that it has its columns."""
    if onto is None:
        max_categories = options.max_categories
        taken = feature_columns(table, path, named=options.features, max_categories=max_categories, intake=intake)
        coding = find_coding(table[taken], path, options.missing or "refuse", max_categories, intake)
        return with_fills(coding, table, path)
    if onto.manifest.kind != "vector":
        raise DataError(f"{onto.manifest.name!r} holds {onto.manifest.kind}s: rows of a table cannot be appended to it")
    return _coding_of_set(table, path, onto, options, intake)


def _coding_of_set(table: pd.DataFrame, path: Path, onto: Prepared, options: AddOptions, intake: Intake) -> TableCoding:
    """Return the coding of the set to append to, after checking that the table has its columns."""
    coding = coding_of(onto.manifest)
    if options.missing not in (None, coding.missing):
        raise DataError(
            f"{onto.manifest.name!r} was added with --missing {coding.missing}, and its rows follow one rule: leave "
            "--missing out"
        )
    known = list(coding.columns)
    for column in onto.manifest.extra.get(LEFT_OUT, []):
        if column in table.columns and options.features is None:
            table = table.drop(columns=column)
            intake.see("columns")
            intake.leave_out("column that the set does not have", column)
    taken = feature_columns(table, path, named=options.features, known=known, intake=intake)
    if sorted(taken) != sorted(known):
        lacking = sorted(set(known) - set(taken))
        more = sorted(set(taken) - set(known))
        faults = []
        if lacking:
            faults.append(f"lacks {_some(lacking)}")
        if more:
            faults.append(f"also has {_some(more)}")
        raise DataError(
            f"{path} cannot be appended to {onto.manifest.name!r}: of the set's columns it {', and '.join(faults)}"
        )
    return coding


def _some(names: Sequence[str]) -> str:
    return first_of([shown(name) for name in names])
