"""CSV files without formulas, for people who open them in a spreadsheet.

A spreadsheet computes a cell that begins with =, +, - or @, also in quotes, so that the name of a file or a client
could run a command. Such text is written with ' before it, which spreadsheets show as text. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pandas as pd

_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""The beginning of text that a spreadsheet may compute, or that is already escaped; the last are wide forms."""


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index; text that a spreadsheet would compute has ' before it.

    Raises:
        OSError: the file cannot be written.
    """
    safe = table.rename(columns=as_text)
    texts = list(map(str, safe.columns))
    for place, kind in enumerate(safe.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            safe.isetitem(place, safe.iloc[:, place].map(as_text))
            texts += map(str, safe.iloc[:, place])
    quoting = csv.QUOTE_MINIMAL
    if any("\r" in text for text in texts):
        # A carriage return without quotes would begin a row of its own, which could begin with a formula.
        quoting = csv.QUOTE_NONNUMERIC
    safe.to_csv(path, index=False, quoting=quoting)


def as_text(value: Any) -> Any:
    """Return text with ' before it if a spreadsheet would compute it, or if it looks like such text; others unchanged.

    >>> as_text("=1+1.png"), as_text("photo.png"), as_text(-1)
    ("'=1+1.png", 'photo.png', -1)
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value
