"""How the columns of a table become features: numbers as they are, texts as a column of 0 and 1 for each value.

The coding belongs to the set, so that rows that are appended or predicted later become the same features.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.core.errors import DataError, first_of, shown
from shoal.core.records import record_from_json
from shoal.data.intake.columns import category_values
from shoal.data.intake.spelling import note_spellings, tidy
from shoal.data.intake.tables import MAX_PROBLEMS, numbers_of, some_rows
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import Manifest

CODING = "coding"
"""Entry of a manifest's `extra` with the coding of the set's columns."""
COLUMNS = "columns"
"""Entry of a manifest's `extra`: `MEASUREMENTS` or `EMBEDDING`."""
MEASUREMENTS = "measurements"
"""Columns of different quantities: methods on features standardise them unless they are told otherwise."""
EMBEDDING = "embedding"
"""Columns that are coordinates of one vector, of one scale: they are taken as they are."""
MAX_SCALES = 10.0
"""Numbered columns are of one scale if no standard deviation is above so many times the median."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class TableCoding:
    """The columns that are features of a set, and how they are coded.

    Attributes:
        columns: of the table, in the order of the features.
        categories: the values of each column of text, each of which is a feature COLUMN=VALUE.
        missing: what is done with missing values: refuse, mean or drop-rows.
        fills: with `mean`, the mean of each feature, by name.
    """

    columns: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = "refuse"
    fills: Mapping[str, float] = field(default_factory=dict)

    def features(self) -> list[str]:
        """Return the names of the features."""
        return [name for column in self.columns for name in self.features_of(column)]

    def features_of(self, column: str) -> list[str]:
        """Return the names of the features of one column."""
        if column not in self.categories:
            return [column]
        return [f"{column}={value}" for value in self.categories[column]]


def coding_of(manifest: Manifest) -> TableCoding:
    """Return the coding of a set; sets without one have only numbers."""
    extra = manifest.extra
    if CODING in extra:
        return record_from_json(TableCoding, extra[CODING])
    return TableCoding(tuple(tidy(str(name)) for name in extra.get("features", ())))


def find_coding(table: pd.DataFrame, path: Path, missing: str, max_categories: int, intake: Intake) -> TableCoding:
    """Return the coding of a new set.

    Args:
        table: the columns that are features.
        path: the file, for errors.
        missing: what is done with missing values.
        max_categories: largest number of values of a column of text.
        intake: notes of the columns of text.

    Raises:
        DataError: a column of text that was named has too many values, or features would share a name.
    """
    categories = {}
    for column in map(str, table.columns):
        values = category_values(table[column])
        if values is None:
            continue
        if len(values) > max_categories:
            raise DataError(
                f"{path}: column {shown(column)} has {len(values)} different texts, at most {max_categories} become "
                "columns: leave it out of --features, or raise --max-categories"
            )
        categories[column] = tuple(values)
        shown_values = f"{_values(len(values))}: {first_of(values)}"
        intake.adapt("column of text as a column of 0 and 1 for each value", column, shown_values)
    coding = TableCoding(tuple(map(str, table.columns)), categories, missing)
    twice = sorted(name for name, count in Counter(coding.features()).items() if count > 1)
    if twice:
        raise DataError(f"{path}: these features would have one name: {first_of(twice)}: rename one column of each")
    return coding


def with_fills(coding: TableCoding, table: pd.DataFrame, path: Path) -> TableCoding:
    """Return a coding with the mean of each feature over the rows that have a value, where they fill missing values."""
    if coding.missing != "mean":
        return coding
    fills: dict[str, float] = {}
    for column, x in _coded(table, coding, path, Intake()).items():
        means = x[~missing_rows(table[column])].astype(np.float64).mean(0)
        fills |= zip(coding.features_of(column), means.tolist(), strict=True)
    return replace(coding, fills=fills)


def encode(table: pd.DataFrame, coding: TableCoding, path: Path, intake: Intake) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of rows, float32 (kept rows, features), and which rows are kept, bool (rows,).

    Args:
        table: has the columns of the coding.
        coding: of the set, with its fills.
        path: the file, for errors.
        intake: notes of conversions, of values that were filled and of rows that were left out.

    Raises:
        DataError: values that are not finite numbers, that the set does not know, or that are missing where these are
            refused; names each such column and its first rows.
    """
    lacking = {column: missing_rows(table[column]) for column in coding.columns}
    parts = _coded(table, coding, path, intake)
    kept = np.ones(len(table), dtype=bool)
    for column, missing in lacking.items():
        count = int(missing.sum())
        if not count:
            continue
        if coding.missing == "drop-rows":
            kept &= ~missing
        else:
            fills = [coding.fills[name] for name in coding.features_of(column)]
            parts[column][missing] = np.array(fills, dtype=np.float32)
            intake.adapt("missing values as the mean of their column", column, _values(count))
    for row in np.flatnonzero(~kept):
        names = [column for column, missing in lacking.items() if missing[row]]
        intake.leave_out("row with missing values (rows count from 0)", f"{path.name}:{row}", first_of(names))
    if not kept.any():
        raise DataError(f"{path}: every row has a missing value: give --missing mean, or leave columns out")
    x = np.concatenate([parts[column] for column in coding.columns], axis=1)
    return np.ascontiguousarray(x[kept]), kept


def missing_rows(values: pd.Series) -> np.ndarray:
    """Return which rows have no value, bool (rows,); a text of spaces is no value."""
    missing = values.isna()
    if not pd.api.types.is_numeric_dtype(values) and not isinstance(values.dtype, pd.CategoricalDtype):
        missing |= np.array([isinstance(value, str) and not tidy(value) for value in values], dtype=bool)
    return np.asarray(missing, dtype=bool)


def _coded(table: pd.DataFrame, coding: TableCoding, path: Path, intake: Intake) -> dict[str, np.ndarray]:
    """Return the features of each column, float32 (rows, features of the column); missing values are 0."""
    parts = {}
    problems = []
    lacking = []
    for column in coding.columns:
        missing = missing_rows(table[column])
        rows = np.flatnonzero(missing)
        if len(rows) and coding.missing == "refuse":
            lacking.append(f"{shown(column)} ({_values(len(rows))}, {some_rows(rows)})")
        try:
            if column in coding.categories:
                parts[column] = _indicators(table[column], coding.categories[column], missing, column, intake)
            else:
                parts[column] = numbers_of(table[column], column, intake, missing)[:, None]
        except DataError as error:
            problems.append(f"{shown(column)}: {error}")
    faults = []
    if lacking:
        remedy = "fill them, or add the set with --missing mean or drop-rows (rows count from 0)"
        faults.append(f"missing values in {first_of(lacking)}: {remedy}")
    if problems:
        wrong = "features must be finite numbers or known texts; drop or mend (rows count from 0):\n  "
        faults.append(wrong + "\n  ".join(problems[:MAX_PROBLEMS]))
    if faults:
        raise DataError(f"{path}: {'; and '.join(faults)}")
    return parts


def _indicators(
    values: pd.Series, known: Sequence[str], missing: np.ndarray, column: str, intake: Intake
) -> np.ndarray:
    """Return a column of 0 and 1 for each known value, float32 (rows, values).

    Raises:
        DataError: another value.
    """
    given = values.astype(object).where(~missing, "").astype(str)
    texts = given.map(tidy)
    note_spellings(dict(zip(given, texts, strict=True)), f"values of {column}", intake)
    places = pd.Categorical(texts, categories=list(known)).codes
    unknown = np.flatnonzero((places < 0) & ~missing)
    if len(unknown):
        raise DataError(
            f"{ascii(texts.iloc[unknown[0]])[:60]} in {some_rows(unknown)} is none of the values that the set knows "
            f"({first_of(list(known))}); correct it, or add the set again with all of its rows and --force"
        )
    x: np.ndarray = np.eye(len(known), dtype=np.float32)[places]
    x[missing] = 0
    return x


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def kind_of_columns(coding: TableCoding, x: np.ndarray) -> str:
    """Return `MEASUREMENTS` or `EMBEDDING`.

    An embedding is one vector: its columns share one name and are numbered (e0, e1 or pixel_0_1), and their standard
    deviations are alike (none above ten times the median). All other tables hold measurements.

    Args:
        coding: of the set.
        x: its features (rows, features).
    """
    stems = {_NUMBER.sub("#", name) for name in coding.columns}
    numbered = len(stems) == 1 and "#" in stems.pop()
    if coding.categories or len(coding.columns) < 2 or not numbered:
        return MEASUREMENTS
    spread = x.std(axis=0, dtype=np.float64)
    spread = spread[spread > 0]
    alike = not len(spread) or spread.max() <= MAX_SCALES * np.median(spread)
    return EMBEDDING if alike else MEASUREMENTS
