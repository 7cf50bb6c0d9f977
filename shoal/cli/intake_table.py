"""The table of what `shoal data add` and `shoal predict` did with each file, row and column."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from shoal.cli.console import table_of
from shoal.data.sets.intake_notes import Intake


def print_intake(console: Console, intake: Intake, names: Path | None = None) -> None:
    """Print what was seen, taken, adapted and left out.

    Args:
        console: where to print.
        intake: the notes of one addition or prediction.
        names: the file that holds all names; None where there is none.
    """
    rows = []
    for row in intake.rows():
        such_as = ", ".join(row.names)
        if len(row.names) < row.count and row.names:
            such_as += ", ..."
        rows.append((row.what, row.count, such_as))
    console.print(table_of(("", "number", "such as"), rows, "Intake"))
    if names is not None and (intake.adapted or intake.left_out):
        console.print(f"all names: {names}", soft_wrap=True, highlight=False, markup=False)
