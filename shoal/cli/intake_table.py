"""The table of what `shoal data add` and `shoal predict` did with each file, row and column."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.data.sets.intake_notes import Intake


def print_intake(console: Console, intake: Intake, names: Path | None = None) -> None:
    """Print what was seen, taken, adapted and left out.

    Args:
        console: where to print.
        intake: the notes of one addition or prediction.
        names: the file that holds all names; None where there is none.
    """
    table = Table("", "number", "such as", title="Intake")
    table.columns[1].justify = "right"
    for row in intake.rows():
        such_as = ", ".join(row.names)
        if len(row.names) < row.count and row.names:
            such_as += ", ..."
        table.add_row(Text(row.what), f"{row.count:,}", Text(such_as))
    console.print(table)
    if names is not None and (intake.adapted or intake.left_out):
        console.print(f"all names: {names}", soft_wrap=True, highlight=False, markup=False)
