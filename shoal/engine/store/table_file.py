"""Parquet tables of a run, read only where they are what was written."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import brief
from shoal.engine.store.codec import StoreError, changed, read_file


def read_table(path: Path, sha256: str | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a Parquet table of a run.

    Args:
        path: the file.
        sha256: hex digest that the file must have, where one is known.
        columns: only these; None: all.

    Raises:
        StoreError: it is missing, changed, truncated, or no Parquet table.
    """
    content = read_file(path)
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise changed(path)
    try:
        return pd.read_parquet(io.BytesIO(content), columns=None if columns is None else list(columns))
    except Exception as error:  # pyarrow raises what it likes for damaged bytes
        raise StoreError(f"{path} is no whole Parquet table ({brief(error)})") from error
