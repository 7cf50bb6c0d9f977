"""Which columns of a table are measurements: labels, identifiers, splits, dates and the like are left out and listed.

A label among the features would give the answer away, and an identifier puts the order of the file into the clusters.
The name of a column decides, then its type; numbers are only left out where they are all equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.data.intake.options import MAX_CATEGORIES
from shoal.data.intake.spelling import MAX_NAMES, some_of, tidy
from shoal.data.sets.intake_notes import Intake

NAMED_LIKE = {
    "a label": "label labels class classes target targets y cluster clusters groundtruth ground_truth true_label "
    "class_label species diagnosis outcome",
    "an identifier": "id ids uuid guid index idx row_number rownum",
    "a fold or a split": "fold folds split splits subset partition",
    "a date or a time": "date dates datetime timestamp timestamps time",
}
"""Names of columns in small letters, by what they are named like."""
LAST_WORDS = {
    "id": "an identifier",
    "ids": "an identifier",
    "date": "a date or a time",
    "timestamp": "a date or a time",
}
"""What a column is named like by its last word, as in `patient_id`."""
CONSTANT = "with the same value in every row"
NO_TEXT = -1
"""In place of a largest number of different texts: no column of text is taken."""
MIN_ROWS = 10
"""Smallest number of rows in which equal values say something."""
ALL = "*"
"""A name of features that stands for all columns that are measurements."""
_WORDS = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBER = re.compile(r"(?!\d+([-/.:])\d+\1\d)[-+]?\d[\d.,'\s]*([eE][-+]?\d+)?\s*\w{0,3}")
"""A number, perhaps with separators or a unit, and no date."""


def feature_columns(
    table: pd.DataFrame,
    path: Path,
    *,
    named: Sequence[str] | None = None,
    max_categories: int = MAX_CATEGORIES,
    intake: Intake | None = None,
) -> list[str]:
    """Return the columns that are features, in the table's order, and note the others.

    Args:
        table: without the columns of clients and labels.
        path: the file, for errors.
        named: the features by name, each entry one name or several with commas between them; `*` stands for all
            measurements. None: all measurements.
        max_categories: largest number of different texts of a column of text that is taken.
        intake: notes of the columns that are left out, with the reason.

    Raises:
        DataError: there is no feature, or a name is not a column.
    """
    notes = intake or Intake()
    columns = [str(column) for column in table.columns]
    notes.see("columns", len(columns))
    reasons = {column: why_no_measurement(table, column, max_categories) for column in columns}
    if named is not None:
        wanted = _named(named, reasons, path)
        reasons = {column: "" if column in wanted else "not named by --features" for column in columns}
    taken = [column for column in columns if not reasons[column]]
    if not taken:
        said = "; ".join(f"{shown(column)}: {reason}" for column, reason in list(reasons.items())[:MAX_NAMES])
        raise DataError(
            f"{path} has no feature column besides the client and the label"
            + (f" ({said}); name the features with --features if some are measurements" if said else "")
        )
    for column, reason in reasons.items():
        if reason:
            notes.leave_out(f"column {reason}", column)
        elif named is None and table[column].dtype.kind in "iu" and table[column].is_unique:
            notes.note("column with another whole number in every row, taken as a measurement", column)
    notes.take("columns", len(taken))
    return taken


def why_no_measurement(table: pd.DataFrame, column: str, max_categories: int = MAX_CATEGORIES) -> str:
    """Return why a column is not a feature; empty if it is one, or if its values are still to be checked."""
    values = table[column]
    if values.isna().all():
        return "without any value"
    if reason := _by_name(column, values, table):
        return reason
    if values.dtype.kind in "mM":
        return "of dates or times"
    texts = category_values(values)
    if texts is None:
        constant = pd.api.types.is_numeric_dtype(values) and values.nunique(dropna=False) == 1
    elif max_categories == NO_TEXT:
        return "of text, which windows do not hold"
    else:
        if 1 < len(values) == len(texts):
            return "with another text in every row"
        if len(texts) > max_categories:
            return f"of text with more than {max_categories} different values (--max-categories)"
        constant = len(texts) == 1
    return CONSTANT if constant and len(values) >= MIN_ROWS else ""


def category_values(values: pd.Series) -> list[str] | None:
    """Return the different texts of a column of text, in order; None for anything else, and for numbers as text."""
    present = values.dropna()
    if isinstance(values.dtype, pd.CategoricalDtype):
        return sorted({tidy(str(value)) for value in present})
    if not all(isinstance(value, str) for value in present):
        return None
    texts = [text for value in present if (text := tidy(value))]
    if sum(_NUMBER.fullmatch(text) is not None for text in texts) * 2 >= len(texts):
        return None
    return sorted(set(texts))


def words(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    >>> words("sampleID"), words("Unnamed: 0"), words("patient_id ")
    (['sample', 'id'], ['unnamed', '0'], ['patient', 'id'])
    """
    return _WORDS.sub(" ", _HUMP.sub(" ", name)).casefold().split()


def _by_name(column: str, values: pd.Series, table: pd.DataFrame) -> str:
    parts = words(column)
    text = "_".join(parts)
    if text == "y" and "x" in table.columns and values.dtype.kind == "f":
        return ""  # a coordinate
    kind = next((kind for kind, names in NAMED_LIKE.items() if text in names.split()), "")
    if parts and not kind:
        kind = "an identifier" if parts[0] == "unnamed" else LAST_WORDS.get(parts[-1], "")
    return f"named like {kind}" if kind else ""


def _named(named: Sequence[str], reasons: Mapping[str, str], path: Path) -> set[str]:
    """Return the named columns; an entry may hold several names with commas between them."""
    wanted: set[str] = set()
    for entry in named:
        whole = tidy(entry)
        wanted |= {whole} if whole in reasons else {tidy(part) for part in entry.split(",")}
    unknown = [name for name in sorted(wanted) if name and name not in reasons and name != ALL]
    if unknown:
        raise DataError(
            f"--features names {some_of(unknown)}, and {path} has no such feature column; it has {some_of(reasons)}"
        )
    if ALL in wanted:
        wanted |= {column for column, reason in reasons.items() if not reason}
    return wanted
