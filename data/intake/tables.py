"""Reading of a user's table, and its columns of finite numbers."""

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

from shoal.core.errors import DataError, first_of, short_text, shown
from shoal.data.intake.spelling import note_spellings, refuse_alike, some_of, tidy
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.readers import gunzip

MAX_VALUES = 1 << 30
"""Largest number of values of a Parquet table, 8 GB in pandas. The header of a small file may announce any number."""
MAX_UNPACKED_FACTOR = 200
"""Largest size of an unpacked .csv.gz over that of its file, beyond `ALWAYS_UNPACKED_BYTES`."""
ALWAYS_UNPACKED_BYTES = 64 << 20
MAX_PROBLEMS = 20
"""Largest number of columns that an error lists."""
_SHOWN = 5
_SEPARATED = re.compile(r"[-+]?\d[\d.,'\s]*")
MAX_WHOLE = 2.0**53
"""From this number on float64 does not hold every whole number."""
MAX_LOSS = 0.01
"""A column is refused if float32 changes it by more than this share of its standard deviation."""
NOTED_LOSS = 1e-4
"""A column is noted if float32 changes it by more than this share of its standard deviation."""


MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "null", "NULL", "None"]
"""Texts in a CSV file that are missing values, but for those of names."""
SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz")
"""Ends of the names of tables."""


def read_table(path: Path, text: Sequence[str] = (), intake: Intake | None = None) -> pd.DataFrame:
    """Read a Parquet or CSV file with at least one row and no repeated column.

    Args:
        path: the file.
        text: columns of a CSV file whose values are kept as text, so that 01 stays 01; only empty values are missing.
        intake: notes of columns with names in another spelling.

    Returns:
        The table. Names of columns have no spaces around them, and Unicode form NFC.

    Raises:
        DataError: the file is missing, of another format, unreadable, empty or too large, or names of columns look
            alike.
    """
    try:
        table = _read(path, text)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except UnicodeError as error:
        raise DataError(f"{path} is not text in UTF-8 ({short_text(error)}): save it as CSV UTF-8") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty: expected a table with a row of names") from None
    except Exception as error:  # pandas and pyarrow raise nearly anything on broken files
        raise DataError(f"{path} cannot be read as a table ({short_text(error)})") from error
    if not len(table):
        raise DataError(f"{path} has no rows")
    spelled = {str(column): tidy(str(column)) for column in table.columns}
    table.columns = pd.Index(spelled.values())
    if intake is not None:
        note_spellings(spelled, "columns", intake)
    return table


def _read(path: Path, text: Sequence[str]) -> pd.DataFrame:
    if path.is_dir():
        raise DataError(f"{path} is a folder: expected a table")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty: expected a table with a row of names")
    name = path.name.lower()
    if name.endswith((".parquet", ".pq")):
        return _read_parquet(path)
    if name.endswith((".csv", ".csv.gz")):
        return _read_csv(path, text)
    raise DataError(f"{path} is not a table of a known format: expected .parquet, .csv or .csv.gz")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    _check_columns(about.schema.to_arrow_schema().names, path)
    values = about.num_rows * max(1, about.num_columns)
    if values > MAX_VALUES:
        raise DataError(f"{path} announces {values:,} values, at most {MAX_VALUES:,} are read: give it in parts")
    words = [field.name for field in about.schema.to_arrow_schema() if not pyarrow.types.is_primitive(field.type)]
    if words:  # only here text that is not UTF-8 is noticed; else it would fail later
        pyarrow.parquet.read_table(path, columns=words).validate(full=True)
    table = pd.read_parquet(path)
    if not isinstance(table.index, pd.RangeIndex):  # columns that pandas wrote as the names of rows
        table = table.reset_index()
    return table


def _read_csv(path: Path, text: Sequence[str]) -> pd.DataFrame:
    raw: Any = path
    if path.name.lower().endswith(".gz"):
        packed = path.read_bytes()
        max_bytes = max(ALWAYS_UNPACKED_BYTES, MAX_UNPACKED_FACTOR * len(packed))
        unpacked = gunzip(packed, max_bytes)
        if len(unpacked) > max_bytes:
            raise DataError(
                f"{path} unpacks to more than {MAX_UNPACKED_FACTOR} times its size: unpack it, and give the .csv file"
            )
        raw = io.BytesIO(unpacked)
    # First the header alone: pandas renames repeated columns, and gives names to nameless ones.
    header = pd.read_csv(raw, header=None, nrows=1, dtype=str, keep_default_na=False)
    names = [str(value) for value in header.iloc[0]]
    _check_columns(names, path)
    if not isinstance(raw, Path):
        raw.seek(0)
    wanted = set(map(tidy, text))
    # Else pandas takes 01 for a number and NA for a missing value.
    texts = {name: str for name in names if tidy(name) in wanted}
    missing = {name: [""] if name in texts else MISSING for name in names}
    with warnings.catch_warnings():
        # Else a row with more fields than the header would lose one, or make the first column an index.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            raw, index_col=False, low_memory=False, dtype=texts, keep_default_na=False, na_values=missing
        )


def find_column(table: pd.DataFrame, wanted: str, path: Path, option: str) -> str:
    """Return the column of a name.

    Args:
        table: from `read_table`.
        wanted: the name.
        path: the file, for errors.
        option: the option that gave the name, or what else to do, for errors.

    Raises:
        DataError: there is no such column; names those that there are.
    """
    if tidy(wanted) in table.columns:
        return tidy(wanted)
    have = some_of(table.columns, MAX_PROBLEMS)
    advice = option
    if option.startswith("--"):
        advice = f"name the right one with {option}"
    if option == "--client-column":
        advice += "; a table of one client needs one, too, with one name in all its rows"
    hint = separator_hint(table) or f": {advice}"
    raise DataError(f"{path} has no column {wanted!r}; its columns: {have}{hint}")


def separator_hint(table: pd.DataFrame) -> str:
    """Return what to do about a table whose only column holds another separator than a comma; else nothing."""
    if len(table.columns) != 1:
        return ""
    mark = next((mark for mark in (";", "\t", "|") if mark in str(table.columns[0])), None)
    if mark is None:
        return ""
    return f". It seems to separate values with {mark!r}: save it with commas"


def _check_columns(names: list[str], path: Path) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1 and name)
    if repeated:
        raise DataError(f"{path} has these columns more than once: {some_of(repeated)}")
    if "" in names:
        raise DataError(
            f"{path}: column {names.index('') + 1} has no name: give it one, or leave it out if it only counts the rows"
        )
    refuse_alike(names, "columns", path)


def numbers_of(values: pd.Series, name: str, intake: Intake, missing: np.ndarray) -> np.ndarray:
    """Return a column as float32 (rows,), and note conversions.

    Args:
        values: the column.
        name: of the column.
        intake: notes of conversions.
        missing: rows without a value, bool (rows,), which become 0.

    Raises:
        DataError: the fault of the values, without the column's name.
    """
    if values.dtype.kind in "mMc":  # dates and complex numbers convert without an error, but are not measurements
        raise DataError(f"{values.dtype} is not a number")
    try:
        numeric = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):  # lists, categories, intervals
        raise DataError(f"{shown(values.dtype)} is not a number") from None
    present = ~missing
    numeric = np.where(present, numeric, 0.0)
    with np.errstate(over="ignore"):
        x = numeric.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x))
    if len(bad):
        raise DataError(_why_not_finite(values, numeric, bad))
    if pd.api.types.is_bool_dtype(values[present].infer_objects()):
        intake.adapt("column of true and false as 1 and 0", name)
    spread = float(numeric[present].std()) if present.any() else 0.0
    lost = float(np.abs(numeric - x).max(initial=0.0)) / spread if spread else 0.0
    if lost > MAX_LOSS or (values.dtype.kind in "iu" and np.abs(numeric).max(initial=0.0) >= MAX_WHOLE):
        raise DataError(
            f"float32 cannot tell its values apart (those around {values[present].iloc[0]} differ by too little): "
            "subtract a number from all of them, or leave the column out if it is an identifier or a time"
        )
    if lost > NOTED_LOSS:
        intake.adapt("column rounded to float32", name, f"by up to {lost:.1%} of its standard deviation")
    return x


def _why_not_finite(values: pd.Series, numeric: np.ndarray, bad: np.ndarray) -> str:
    words = ~pd.isna(values.to_numpy()[bad]) & np.isnan(numeric[bad])
    if not words.any():
        return f"NaN or infinite in {some_rows(bad)}"
    value = values.iloc[bad[words.argmax()]]
    hint = ""
    if isinstance(value, str) and _SEPARATED.fullmatch(value.strip()):
        hint = "; write numbers without thousands separators, and with a point"
    return f"not a number ({ascii(value)[:60]}) in {some_rows(bad)}{hint}"


def some_rows(rows: np.ndarray) -> str:
    """Return the first of some row numbers in words, such as "rows 1, 3 and 12 more"."""
    noun = "row" if len(rows) == 1 else "rows"
    return f"{noun} {first_of([str(int(row)) for row in rows], _SHOWN)}"
