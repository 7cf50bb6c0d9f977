"""Reading a user's table: clients, and features that are all finite numbers."""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from core.errors import DataError, brief, shown
from data.readers import gunzip

MOST_VALUES = 1 << 30
"""Values of a Parquet table, at most: 8 GB as pandas holds them. A small file may announce any number."""
MOST_UNPACKED = 200
"""A .csv.gz may hold so many times its own size, and `ALWAYS_UNPACKED` bytes in any case."""
ALWAYS_UNPACKED = 64 << 20
MOST_PROBLEMS = 20
"""Columns that an error lists."""
_SHOWN = 5
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def read_table(path: Path, text: Sequence[str] = ()) -> pd.DataFrame:
    """A Parquet or CSV file with at least one row and no repeated column.

    Args:
        path: the file.
        text: columns that a CSV file's values are taken from as they stand, so that 1, 01 and 1.0 stay three names;
            only empty ones are missing.

    Raises:
        DataError: missing, of another format, unreadable, empty, or too large.
    """
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            table = _read_parquet(path)
        elif name.endswith((".csv", ".csv.gz")):
            table = _read_csv(path, text)
        else:
            raise DataError(f"{path} is no table this can read: expected .parquet, .csv or .csv.gz")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except DataError:
        raise
    except Exception as error:  # pandas and pyarrow raise nearly anything on broken files
        raise DataError(f"{path} cannot be read as a table ({brief(error)})") from error
    if not len(table):
        raise DataError(f"{path} has no rows")
    _check_columns(list(map(str, table.columns)), path)
    return table


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    values = about.num_rows * max(1, about.num_columns)
    if values > MOST_VALUES:
        raise DataError(f"{path} announces {values:,} values, at most {MOST_VALUES:,} are read: give it in parts")
    words = [field.name for field in about.schema.to_arrow_schema() if not pyarrow.types.is_primitive(field.type)]
    if words:  # text that is no UTF-8 is noticed here alone, and would be met anywhere later
        pyarrow.parquet.read_table(path, columns=words).validate(full=True)
    return pd.read_parquet(path)


def _read_csv(path: Path, text: Sequence[str]) -> pd.DataFrame:
    raw: Any = path
    if path.name.lower().endswith(".gz"):
        packed = path.read_bytes()
        most = max(ALWAYS_UNPACKED, MOST_UNPACKED * len(packed))
        unpacked = gunzip(packed, most)
        if len(unpacked) > most:
            raise DataError(
                f"{path} unpacks to more than {MOST_UNPACKED} times its size: unpack it, and give the .csv file"
            )
        raw = io.BytesIO(unpacked)
    # The header alone first: of equal names pandas makes other ones, and nameless columns get names.
    header = pd.read_csv(raw, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(value) for value in header.iloc[0]]
    _check_columns(names, path)
    if not isinstance(raw, Path):
        raw.seek(0)
    with warnings.catch_warnings():
        # A row of more fields than the header has would else lose one, or make the first column an index.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        table = pd.read_csv(raw, index_col=False, low_memory=False)
    wanted = [column for column in text if column in names]
    if wanted:
        if not isinstance(raw, Path):
            raw.seek(0)
        # A second time: only so does pandas take neither 01 for a number nor NA for nothing.
        plain = pd.read_csv(raw, index_col=False, usecols=wanted, dtype=str, keep_default_na=False)
        for column in wanted:
            table[column] = plain[column].where(plain[column] != "", None)
    return table


def _check_columns(names: list[str], path: Path) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1 and name)
    if repeated:
        raise DataError(f"{path} has these columns more than once: {', '.join(map(shown, repeated[:10]))}")
    if "" in names:
        raise DataError(
            f"{path}: column {names.index('') + 1} has no name: give it one, or leave it out if it only counts the rows"
        )


def client_numbers(column: pd.Series, path: Path) -> tuple[np.ndarray, list[str]]:
    """The client of each row as a number into the sorted names, int64 (rows,); and the names.

    Raises:
        DataError: rows without a client.
    """
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise DataError(f"{path}: {len(missing)} rows have no client in {column.name!r}: {_rows(missing)}")
    values = column if pd.api.types.is_integer_dtype(column) else column.astype(str)
    distinct, numbers = np.unique(values.to_numpy(), return_inverse=True)
    names = [str(name) for name in distinct]
    if all(_WHOLE.fullmatch(name) for name in names):  # also where they were read as text: 2 before 10
        order = np.argsort([int(name) for name in names], kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return rank[numbers].astype(np.int64), [names[k] for k in order]
    return numbers.astype(np.int64), names


def features(table: pd.DataFrame, path: Path) -> tuple[np.ndarray, list[str]]:
    """Every column as float32 (rows, columns), and the columns' names.

    Raises:
        DataError: no column, or values that are no finite float32; names each such column and its first rows.
    """
    if not len(table.columns):
        raise DataError(f"{path} has no feature column besides the client and the label")
    x = np.empty(table.shape, dtype=np.float32)
    problems = []
    for number, column in enumerate(table.columns):
        values = table[column]
        # Dates and complex numbers convert without an error, and mean nothing here.
        kinds = (
            pd.api.types.is_datetime64_any_dtype,
            pd.api.types.is_timedelta64_dtype,
            pd.api.types.is_complex_dtype,
        )
        if any(kind(values) for kind in kinds):
            problems.append(f"  {shown(column)}: {values.dtype} is not a number")
            continue
        try:
            numeric = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        except (TypeError, ValueError, OverflowError):  # lists, categories, intervals
            problems.append(f"  {shown(column)}: {shown(values.dtype)} is not a number")
            continue
        with np.errstate(over="ignore"):
            x[:, number] = numeric
        bad = np.flatnonzero(~np.isfinite(x[:, number]))
        if len(bad):
            words = ~pd.isna(values.to_numpy()[bad]) & np.isnan(numeric[bad])
            value = values.iloc[bad[words.argmax()]]
            what = f"not a number ({ascii(value)[:60]})" if words.any() else "NaN or infinite"
            problems.append(f"  {shown(column)}: {what} in {_rows(bad)}")
    if len(problems) > MOST_PROBLEMS:
        problems[MOST_PROBLEMS:] = [f"  and {len(problems) - MOST_PROBLEMS} more columns"]
    if problems:
        raise DataError(
            f"{path}: features must be finite numbers; drop or mend (rows count from 0):\n" + "\n".join(problems)
        )
    return x, [str(column) for column in table.columns]


def _rows(rows: np.ndarray) -> str:
    shown = ", ".join(str(int(row)) for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"
