"""Read Parquet tables of a run, and refuse those that have changed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import short_text
from shoal.engine.store.codec import StoreError, read_file


def read_table(path: Path, sha256: str | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a Parquet table of a run.

    Args:
        path: the file.
        sha256: hex digest that the file must have; None: it is not known.
        columns: the columns to read; None: all.

    Raises:
        StoreError: it is missing, changed, truncated, or not a Parquet table.
    """
    content = read_file(path, sha256)
    try:
        return pd.read_parquet(io.BytesIO(content), columns=None if columns is None else list(columns))
    except Exception as error:  # pyarrow raises exceptions of many types for damaged bytes
        raise StoreError(f"{path} is damaged: it is not a complete Parquet table ({short_text(error)})") from error
