"""Which columns of a table are measurements: labels, identifiers, dates and the like are left out, and that is noted.

A label among the features would give the answer away, and a row number puts the order of the file into the clusters.
Names decide where they say it; else values do. Columns of real numbers are never left out for their values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, shown
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
MAX_LABELS = 20
"""A column y beside a column x is a label if it holds at most so many different whole numbers, else a coordinate."""
MIN_ROWS = 10
"""Smallest number of rows to judge values by: in fewer rows they may be equal or in order by chance."""
MIN_EVIDENCE = 14.0
"""Whole numbers that all differ are identifiers if chance makes this less likely than exp(-14), 1 in a million."""
COUNTER_GAP = 20
"""Whole numbers in order count the rows if their range is at most so many times their number."""
ALL = "*"
"""A name of features that stands for all columns that are measurements."""
MAX_NAMES = 10
"""Largest number of columns that an error names."""
MAX_CATEGORIES = 20
"""A column of text is taken if it holds at most so many different texts, unless the user says otherwise."""
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
    notes.see("columns", len(table.columns))
    columns = [str(column) for column in table.columns]
    reasons = {
        column: "" if column in (known or ()) else why_no_measurement(table, column, max_categories)
        for column in columns
    }
    if named is not None:
        wanted = _named(named, columns, [column for column in columns if not reasons[column]], path)
        reasons = {column: "" if column in wanted else "not named by --features" for column in columns}
    else:
        _keep_the_last(reasons, notes)
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
        elif named is None and not known and not why_no_measurement(table, column) and _all_differ(table[column]):
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
        return sorted({tidy(str(value)) for value in values if not _is_missing(value)})
    texts = _texts(values)
    if not texts or all(_DATE.fullmatch(text) for text in texts) or _are_numbers(texts):
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
    text = " ".join(parts)
    if text in ANSWERS and not (text == "y" and _is_coordinate(values, table)):
        return "named like a label"
    if not parts:
        return ""
    if text in IDENTIFIERS or parts[-1] in IDENTIFIER_WORDS or parts[0] == "unnamed" or parts[:2] == ["index", "level"]:
        return "named like an identifier"
    if text in SPLITS:
        return "named like a fold or a split"
    if parts[-1] in DATES or (text == "time" and not _is_duration(values)):
        return "named like a date or a time"
    return ""


def _is_coordinate(values: pd.Series, table: pd.DataFrame) -> bool:
    """Return whether a column y is the second coordinate of points, and not their label."""
    beside = any(str(other).strip().casefold() == "x" for other in table.columns)
    if not beside or not pd.api.types.is_numeric_dtype(values):
        return False
    return not (pd.api.types.is_integer_dtype(values) and values.nunique() <= MAX_LABELS)


def _is_duration(values: pd.Series) -> bool:
    """Return whether a column `time` is a duration, such as a reaction time, and not the time of a row."""
    return pd.api.types.is_float_dtype(values) and not values.is_monotonic_increasing


def _by_text(values: pd.Series, max_categories: int) -> str:
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        return "of dates or times"
    texts = _texts(values)
    if texts and all(_DATE.fullmatch(text) for text in texts):
        return "of dates or times"
    different = category_values(values)
    if different is None:
        return ""  # numbers, also as text, perhaps with some to be mended
    if len(texts) > 1 and len(set(texts)) == len(texts):
        return "with another text in every row"
    if len(different) > max_categories:
        return f"of text with more than {max_categories} different values (--max-categories)"
    if len(different) == 1 and len(values) >= MIN_ROWS:
        return "with the same value in every row"
    return ""


def _texts(values: pd.Series) -> list[str]:
    """Return the texts of a column of text, without missing ones; none where it holds anything else."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values):
        return []
    present = [value for value in values if not _is_missing(value)]
    others = (int, float, complex, bytes, list, dict, np.ndarray)
    if any(isinstance(value, others) for value in present):
        return []
    texts = [tidy(str(value)) for value in present]
    return [text for text in texts if text]


def _are_numbers(texts: list[str]) -> bool:
    """Return whether at least half of the texts are numbers."""
    return sum(_NUMBER.fullmatch(text) is not None for text in texts) * 2 >= len(texts)


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value))


def _by_number(values: pd.Series) -> str:
    """Return the reason by the numbers; for real numbers only that they are all equal."""
    if len(values) < MIN_ROWS or not pd.api.types.is_numeric_dtype(values) or values.isna().any():
        return ""
    if (values == values.iloc[0]).all():
        return "with the same value in every row"
    if not pd.api.types.is_integer_dtype(values):
        return ""
    numbers = values.to_numpy()
    if _are_calendar_days(numbers):
        return "of dates or times"
    if not _all_differ(values):
        return ""
    span = int(numbers.max()) - int(numbers.min()) + 1
    ordered = values.is_monotonic_increasing or values.is_monotonic_decreasing
    if span == len(values) or (ordered and span <= COUNTER_GAP * len(values)):
        return "that counts the rows"
    if len(values) * (len(values) - 1) / (2 * span) > MIN_EVIDENCE:
        return "with another whole number in every row, as identifiers have"
    return ""


def _all_differ(values: pd.Series) -> bool:
    whole = len(values) >= MIN_ROWS and pd.api.types.is_integer_dtype(values)
    return bool(whole and values.nunique() == len(values))


def _are_calendar_days(numbers: np.ndarray) -> bool:
    """Return whether all numbers are days such as 20240131."""
    if numbers.min() < 1900_01_01 or numbers.max() > 2100_12_31:
        return False
    month = numbers // 100 % 100
    day = numbers % 100
    return bool(((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())


def _keep_the_last(reasons: dict[str, str], notes: Intake) -> None:
    """Take columns that were left out for their values alone, if there are no other columns."""
    if not reasons or not all(reasons.values()):
        return
    for column, reason in reasons.items():
        if reason.startswith(("with the same", "that counts", "with another whole")):
            notes.note(f"column {reason}, taken since there is no other", column)
            reasons[column] = ""


def _named(named: Sequence[str], columns: list[str], measured: list[str], path: Path) -> set[str]:
    """Return the named columns; names may contain commas, or be separated by them."""
    existing = set(columns)
    names: list[str] = []
    for entry in named:
        whole = tidy(entry)
        names += [whole] if whole in existing else [tidy(part) for part in entry.split(",")]
    unknown = [name for name in names if name and name not in existing and name != ALL]
    if unknown:
        have = first_of([shown(column) for column in columns], MAX_NAMES)
        missing = first_of([shown(name) for name in unknown], MAX_NAMES)
        raise DataError(f"--features names {missing}, and {path} has no such feature column; it has {have}")
    return (set(names) & existing) | (set(measured) if ALL in names else set())
