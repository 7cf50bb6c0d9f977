"""A user's table as a batch of vectors: the client, the label and the features of each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError
from shoal.core.records import record_to_json
from shoal.data.intake.client_table import read_client_table, table_origin
from shoal.data.intake.columns import feature_columns
from shoal.data.intake.names import in_order
from shoal.data.intake.options import AddOptions
from shoal.data.intake.own_store import Batch, known_files
from shoal.data.intake.spelling import some_of
from shoal.data.intake.table_coding import (
    CODING,
    COLUMNS,
    TableCoding,
    coding_of,
    encode,
    find_coding,
    kind_of_columns,
    with_fills,
)
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


def read_rows(path: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake) -> Batch:
    """Return the rows of a table as they would be stored; nothing is written.

    Args:
        path: the table.
        onto: the set to append to: the rows must fit it.
        options: of the user.
        intake: notes of what is taken, adapted and left out.

    Raises:
        DataError: see `shoal.data.intake.own.add`.
    """
    table = read_client_table(path, onto, options, intake)
    coding = _coding(table.columns, path, onto, options, intake)
    x, kept = encode(table.columns, coding, path, intake)
    client = table.client[kept]
    if bare := in_order(set(table.client) - set(client)):
        raise DataError(f"{path}: every row of these clients has a missing value: {some_of(bare)}: give --missing mean")
    extra = table_origin(path, onto, table.client_column, table.label_column)
    if onto is None:
        extra |= {
            "features": coding.features(),
            CODING: record_to_json(coding),
            COLUMNS: kind_of_columns(coding, x),
        }
    files = [f"{path.name}:{row}" for row in np.flatnonzero(kept)]
    refuse_known_rows(files, path, onto)
    intake.see("rows", len(kept))
    intake.take("rows", len(x))
    return Batch(
        "vector",
        x,
        None if table.label is None else table.label[kept].tolist(),
        client.tolist(),
        in_order(client),
        files,
        source=f"table {path.name}",
        extra=extra,
        intake=intake,
    )


def refuse_known_rows(files: Sequence[str], path: Path, onto: PreparedSet | None) -> None:
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


def _coding(
    table: pd.DataFrame, path: Path, onto: PreparedSet | None, options: AddOptions, intake: Intake
) -> TableCoding:
    """Return the coding of a new set, or that of the set to append to, whose columns the table must have."""
    if onto is None:
        max_categories = options.max_categories
        taken = feature_columns(table, path, named=options.features, max_categories=max_categories, intake=intake)
        coding = find_coding(table[taken], path, options.missing or "refuse", max_categories, intake)
        return with_fills(coding, table, path)
    coding = coding_of(onto.manifest)
    if options.missing not in (None, coding.missing):
        raise DataError(
            f"{onto.manifest.name!r} was added with --missing {coding.missing}, and its rows follow one rule: leave "
            "--missing out"
        )
    if lacking := sorted(set(coding.columns) - set(table.columns)):
        raise DataError(
            f"{path} cannot be appended to {onto.manifest.name!r}: of the set's columns it lacks {some_of(lacking)}"
        )
    for column in table.columns.difference(coding.columns, sort=False):
        intake.leave_out("column that the set does not have", column)
    intake.see("columns", len(table.columns))
    intake.take("columns", len(coding.columns))
    return coding
