"""The names of clients and labels: one name for one value, whatever type a file gives it.

Readers of tables, arrays and label files take names from `names_of`, so that the value 1 is called "1" in a column of
whole numbers, of floats and of decimals. A text stays as it is, but for spaces around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.data.intake.spelling import note_spellings, refuse_alike, tidy
from shoal.data.intake.tables import some_rows
from shoal.data.sets.intake_notes import Intake

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def in_order(names: Iterable[str]) -> list[str]:
    """Return the different names in order, 2 before 10 where all are whole numbers."""
    distinct = sorted(map(str, set(names)))
    if all(_WHOLE.fullmatch(name) for name in distinct):
        return sorted(distinct, key=int)
    return distinct


def names_of(
    column: pd.Series, path: Path, what: str, known: Sequence[str] = (), intake: Intake | None = None
) -> np.ndarray:
    """Return the names in a column, str (rows,).

    Args:
        column: of clients or labels.
        path: the file, for errors.
        what: client or label.
        known: names of the set that is appended to.
        intake: notes of names in another spelling.

    Raises:
        DataError: a row has no name, a value cannot be a name, or two names look alike (`refuse_alike`).
    """
    try:
        if column.dtype == object:  # equal values of several types, such as 1 and True, are not one name
            column = pd.Series([name_of(value) for value in column], dtype=object, name=column.name)
        codes, distinct = pd.factorize(column)
        names = [name_of(value) or "" for value in np.asarray(distinct)]
    except DataError as error:
        raise DataError(f"{path}: {what} column {shown(column.name)} {error}") from None
    chosen = one_spelling_each(names, f"{what}s", path, known, intake)
    spelled = np.array([*(chosen[name] for name in names), ""])
    result: np.ndarray = spelled[codes]  # -1, a missing value, is the empty text at the end
    rows = np.flatnonzero(result == "")
    if len(rows):
        raise DataError(f"{path}: {len(rows)} rows have no {what} in {column.name!r}: {some_rows(rows)}")
    return result


def one_spelling_each(
    names: Iterable[str], what: str, where: object, known: Sequence[str] = (), intake: Intake | None = None
) -> dict[str, str]:
    """Return each name without spaces around it, and note those that had some.

    Args:
        names: as they are spelled.
        what: what they name, a plural such as "clients".
        where: the file or folder, for errors.
        known: names of the set that is appended to.
        intake: notes of names in another spelling.

    Raises:
        DataError: two names look alike.
    """
    chosen = {name: tidy(name) for name in names}
    refuse_alike(chosen.values(), what, where, known)
    if intake is not None:
        note_spellings(chosen, what, intake)
    return chosen


def name_of(value: Any) -> str | None:
    """Return what a value is called; None for a missing one.

    Raises:
        DataError: a value that cannot be a name, as the end of a sentence.

    >>> [name_of(value) for value in (7, 7.0, np.float32(7), Decimal("7.00"), True, 1.5, float("nan"))]
    ['7', '7', '7', '7', 'True', '1.5', None]
    """
    if isinstance(value, str):
        return value
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    if isinstance(value, np.datetime64):
        value = pd.Timestamp(value)
    if isinstance(value, bool | np.bool_ | int | np.integer | date):
        return str(value)
    if isinstance(value, float | np.floating | Decimal):
        return _number_name(value)
    raise DataError(f"holds {type(value).__name__}: expected text or whole numbers")


def _number_name(value: Any) -> str:
    if not math.isfinite(value):
        raise DataError(f"holds {value}, which is no name")
    if value != int(value):
        return str(value)
    if not isinstance(value, Decimal) and abs(value) >= 2.0 ** (np.finfo(type(value)).nmant + 1):
        raise DataError(
            f"holds {value:.0f} as a float, which does not hold every whole number of this size: store whole numbers "
            "or text"
        )
    return str(int(value))
