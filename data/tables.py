"""Reading a user's table: clients, and features that are all finite numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from core.errors import DataError

_SHOWN = 5


def read_table(path: Path) -> pd.DataFrame:
    """A Parquet or CSV file with at least one row and no repeated column.

    Raises:
        DataError: missing, of another format, unreadable or empty.
    """
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            table = pd.read_parquet(path)
        elif name.endswith((".csv", ".csv.gz")):
            table = pd.read_csv(path)
        else:
            raise DataError(f"{path} is no table this can read: expected .parquet, .csv or .csv.gz")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (ValueError, OSError, EOFError) as error:  # pandas' and pyarrow's errors are ValueErrors or OSErrors
        raise DataError(f"{path} cannot be read as a table ({error})") from error
    if not len(table):
        raise DataError(f"{path} has no rows")
    if not table.columns.is_unique:
        repeated = sorted({str(c) for c in table.columns[table.columns.duplicated()]})
        raise DataError(f"{path} has these columns more than once: {', '.join(repeated)}")
    return table


def client_numbers(column: pd.Series, path: Path) -> tuple[np.ndarray, list[str]]:
    """The client of each row as a number into the sorted names, int64 (rows,); and the names.

    Raises:
        DataError: rows without a client.
    """
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise DataError(f"{path}: {len(missing)} rows have no client in {column.name!r}: {_rows(missing)}")
    values = column if pd.api.types.is_integer_dtype(column) else column.astype(str)
    names, numbers = np.unique(values.to_numpy(), return_inverse=True)
    return numbers.astype(np.int64), [str(name) for name in names]


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
        if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_complex_dtype(values):
            problems.append(f"  {column}: {values.dtype} is not a number")
            continue
        numeric = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
        with np.errstate(over="ignore"):
            x[:, number] = numeric
        bad = np.flatnonzero(~np.isfinite(x[:, number]))
        if len(bad):
            words = ~pd.isna(values.to_numpy()[bad]) & np.isnan(numeric[bad])
            what = f"not a number ({values.iloc[bad[words.argmax()]]!r})" if words.any() else "NaN or infinite"
            problems.append(f"  {column}: {what} in {_rows(bad)}")
    if problems:
        raise DataError(
            f"{path}: features must be finite numbers; drop or mend (rows count from 0):\n" + "\n".join(problems)
        )
    return x, [str(column) for column in table.columns]


def _rows(rows: np.ndarray) -> str:
    shown = ", ".join(str(int(row)) for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"
