"""Which columns of a table are measurements: labels, identifiers, dates and the like are left out, and that is noted.

A label among the features would give the answer away, and a row number puts the order of the file into the clusters.
Names decide where they say it; else values do. Columns of real numbers are never left out for their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
from shoal.data.intake.options import MAX_CATEGORIES
from shoal.data.intake.spelling import tidy
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.wording import first_of

ANSWERS = {"label", "labels", "class", "classes", "target", "targets", "y", "cluster", "clusters", "groundtruth"} | {
    "ground truth",
    "true label",
    "class label",
    "species",
    "diagnosis",
    "outcome",
}
IDENTIFIERS = {"index", "idx", "row number", "rownum", "level 0"}
IDENTIFIER_WORDS = {"id", "ids", "uuid", "guid"}
SPLITS = {"fold", "folds", "split", "splits", "subset", "partition"}
DATES = {"date", "dates", "datetime", "timestamp", "timestamps"}
CONSTANT = "with the same value in every row"
COUNTER = "that counts the rows"
"""Reasons by values alone: such columns are taken where there are no others."""
MIN_ROWS = 10
"""Smallest number of rows to judge values by: in fewer rows they may be equal or in order by chance."""
COUNTER_GAP = 20
"""Whole numbers in order count the rows if their range is at most so many times their number."""
ALL = "*"
"""A name of features that stands for all columns that are measurements."""
MAX_NAMES = 10
"""Largest number of columns that an error names."""
_WORDS = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DATE = re.compile(
    r"\s*(\d{1,4}([-/.])\d{1,2}\2\d{1,4}([T ]+\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?)\s*"
)
_NUMBER = re.compile(r"\s*[-+(]?[$€£¥]?\s*\d[\d.,'\s]*([eE][-+]?\d+)?\s*([^\W\d_]{1,4}|[$€£¥°%])?\)?\s*")
"""A number with separators, a currency, or a unit of up to four letters."""


def feature_columns(
    table: pd.DataFrame,
    path: Path,
    *,
    named: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    max_categories: int = MAX_CATEGORIES,
    intake: Intake | None = None,
) -> list[str]:
    """Return the columns that are features, in the table's order, and note the others.

    Args:
        table: without the columns of clients and labels.
        path: the file, for errors.
        named: the features by name, each entry one name or several with commas between them; `*` stands for all
            measurements. None: all measurements.
        known: the columns of the set that the rows are appended to; they are always taken.
        max_categories: largest number of different texts of a column of text that is taken.
        intake: notes of the columns that are left out, with the reason.

    Raises:
        DataError: there is no feature, or a name is not a column.
    """
    notes = intake or Intake()
    columns = [str(column) for column in table.columns]
    notes.see("columns", len(columns))
    reasons = {
        column: "" if column in (known or ()) else why_no_measurement(table, column, max_categories)
        for column in columns
    }
    if named is not None:
        wanted = _named(named, reasons, path)
        reasons = {column: "" if column in wanted else "not named by --features" for column in columns}
    else:
        _take_the_last(reasons, notes)
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
        elif named is None and not known and len(table) >= MIN_ROWS and _is_whole(table[column]):
            notes.note("column with another whole number in every row, taken as a measurement", column)
    notes.take("columns", len(taken))
    return taken


def why_no_measurement(table: pd.DataFrame, column: str, max_categories: int = MAX_CATEGORIES) -> str:
    """Return why a column is not a feature; empty if it is one, or if its values are still to be checked."""
    values = table[column]
    if values.isna().all():
        return "without any value"
    return _by_name(column, values, table) or _by_text(values, max_categories) or _by_number(values)


def category_values(values: pd.Series) -> list[str] | None:
    """Return the different texts of a column of text, in order; None for numbers, dates and numbers as text."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return sorted({tidy(str(value)) for value in values.dropna()})
    texts = _texts(values)
    if not texts or all(_DATE.fullmatch(text) for text in texts) or _are_numbers(texts):
        return None
    return sorted(set(texts))


def _is_whole(values: pd.Series) -> bool:
    """Return whether a column holds whole numbers that all differ, which may be identifiers."""
    return bool(pd.api.types.is_integer_dtype(values) and values.is_unique)


def words(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    >>> words("sampleID"), words("Unnamed: 0"), words("patient_id ")
    (['sample', 'id'], ['unnamed', '0'], ['patient', 'id'])
    """
    return _WORDS.sub(" ", _HUMP.sub(" ", name)).casefold().split()


def _take_the_last(reasons: dict[str, str], notes: Intake) -> None:
    """Take columns that were left out for their values alone, if there are no other columns."""
    if not all(reasons.values()):
        return
    for column, reason in reasons.items():
        if reason in (CONSTANT, COUNTER):
            notes.note(f"column {reason}, taken since there is no other", column)
            reasons[column] = ""


def _by_name(column: str, values: pd.Series, table: pd.DataFrame) -> str:
    parts = words(column)
    text = " ".join(parts)
    coordinate = "x" in table.columns and pd.api.types.is_float_dtype(values)
    if text in ANSWERS and not (text == "y" and coordinate):
        return "named like a label"
    if not parts:
        return ""
    if text in IDENTIFIERS or parts[-1] in IDENTIFIER_WORDS or parts[0] == "unnamed" or parts[:2] == ["index", "level"]:
        return "named like an identifier"
    if text in SPLITS:
        return "named like a fold or a split"
    return "named like a date or a time" if parts[-1] in DATES or text == "time" else ""


def _by_text(values: pd.Series, max_categories: int) -> str:
    texts = _texts(values)
    dated = pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values)
    if dated or (texts and all(_DATE.fullmatch(text) for text in texts)):
        return "of dates or times"
    different = category_values(values)
    if different is None:
        return ""  # numbers, also as text, perhaps with some to be mended
    if 1 < len(texts) == len(set(texts)):
        return "with another text in every row"
    if len(different) > max_categories:
        return f"of text with more than {max_categories} different values (--max-categories)"
    return CONSTANT if len(different) == 1 and len(values) >= MIN_ROWS else ""


def _texts(values: pd.Series) -> list[str]:
    """Return the texts of a column of text, without missing ones; none where it holds anything else."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values):
        return []
    present = list(values.dropna())
    others = (int, float, complex, bytes, list, dict, np.ndarray)
    if any(isinstance(value, others) for value in present):
        return []
    texts = [tidy(str(value)) for value in present]
    return [text for text in texts if text]


def _are_numbers(texts: list[str]) -> bool:
    """Return whether at least half of the texts are numbers."""
    return sum(_NUMBER.fullmatch(text) is not None for text in texts) * 2 >= len(texts)


def _by_number(values: pd.Series) -> str:
    """Return the reason by the numbers; for real numbers only that they are all equal."""
    if len(values) < MIN_ROWS or not pd.api.types.is_numeric_dtype(values) or values.isna().any():
        return ""
    if (values == values.iloc[0]).all():
        return CONSTANT
    if not _is_whole(values):
        return ""
    span = int(values.max()) - int(values.min()) + 1
    ordered = values.is_monotonic_increasing or values.is_monotonic_decreasing
    if span == len(values) or (ordered and span <= COUNTER_GAP * len(values)):
        return COUNTER
    return ""


def _named(named: Sequence[str], reasons: Mapping[str, str], path: Path) -> set[str]:
    """Return the named columns; an entry may hold several names with commas between them."""
    wanted: set[str] = set()
    for entry in named:
        whole = tidy(entry)
        wanted |= {whole} if whole in reasons else {tidy(part) for part in entry.split(",")}
    unknown = [name for name in sorted(wanted) if name and name not in reasons and name != ALL]
    if unknown:
        have = first_of([shown(column) for column in reasons], MAX_NAMES)
        missing = first_of([shown(name) for name in unknown], MAX_NAMES)
        raise DataError(f"--features names {missing}, and {path} has no such feature column; it has {have}")
    if ALL in wanted:
        wanted |= {column for column, reason in reasons.items() if not reason}
    return wanted
