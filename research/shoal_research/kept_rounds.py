"""The tables of rounds of a kept result: every evaluated round of every run, so that a curve can be checked later."""

from __future__ import annotations

import gzip
import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal_research.definition import StudyError

PLACE = ["row", "column", "seed"]
MAX_BYTES = 400_000
"""Of a kept table of rounds."""
SIGNIFICANT_DIGITS = 5


def rounds_file(result: Path) -> Path:
    """Return the file of the rounds beside a kept result."""
    return result.parent / "rounds" / f"{result.stem}.csv.gz"


def rounds_of_cells(cells: Collection[Mapping[str, Any]], metrics: Collection[str]) -> pd.DataFrame:
    """Return the rounds of the runs of a result, a row for each evaluated round.

    Args:
        cells: row, column, seed and run of each.
        metrics: columns that are kept, as far as a run has them.
    """
    parts = []
    for cell in cells:
        table = RunFolder(places.runs() / cell["run"]).table("rounds")
        own = [name for name in dict.fromkeys(["round", *metrics, "seconds"]) if name in table]
        part = table[own].dropna(subset=[name for name in own if name in metrics], how="all")
        for position, name in enumerate(PLACE):
            part.insert(position, name, cell[name])
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def keep_rounds(result: Path, rounds: pd.DataFrame, preserved: Collection[str]) -> None:
    """Write the rounds beside a kept result.

    Args:
        result: the file of the kept result.
        rounds: of the new runs.
        preserved: cells of the older result that stay, as `row/column`.

    Raises:
        StudyError: the table is too large to be kept.
    """
    path = rounds_file(result)
    if path.is_file() and preserved:
        before = pd.read_csv(path)
        rounds = pd.concat([before[(before["row"] + "/" + before["column"]).isin(set(preserved))], rounds])
    if rounds.empty:
        return
    text = rounds.to_csv(index=False, float_format=f"%.{SIGNIFICANT_DIGITS}g")
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream:
        stream.write(text.encode())
    if packed.tell() > MAX_BYTES:
        raise StudyError(
            f"the rounds of {result.stem} have {packed.tell():,} bytes, and at most {MAX_BYTES:,} are kept: "
            "evaluate less often (evaluate.every)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed.getvalue())
