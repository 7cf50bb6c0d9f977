"""The files of a sweep's result, and the links from its page to the reports of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.data.sets.csv_file import write_csv
from shoal.engine.settings import places
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.run_folder import RunFolder
from shoal.review.pages.comparison_page import report_of

RESULT = "result.json"


def write_result_files(folder: Path, result: dict[str, Any], table: pd.DataFrame, table_name: str) -> None:
    """Write result.json and a CSV table into a folder, which is made where it is missing.

    Args:
        folder: of the sweep.
        result: as JSON.
        table: a row a number.
        table_name: of the CSV file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    write_csv(table, folder / table_name)


def report_links(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return runs by name, each with the address of its report, which is empty where the run has none."""
    return [(name, report_of(RunFolder(places.runs() / name))) for name in names]
