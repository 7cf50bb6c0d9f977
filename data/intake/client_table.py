"""A table whose rows name their client, and perhaps their label; and the names themselves, as a set spells them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.data.intake.names import names_of
from shoal.data.intake.options import AddOptions
from shoal.data.intake.tables import find_column, read_table
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
