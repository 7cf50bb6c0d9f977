"""`shoal methods`: the methods by the question that each answers."""

from __future__ import annotations

import typer
from rich.table import Table

from shoal.cli.console import out
from shoal.methods.index import QUESTIONS

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal methods")
def methods() -> None:
    """List the methods by the question that each answers. `shoal advise SET` says which one fits a data set."""
    for question in QUESTIONS:
        out.print(f"[bold]{question.text}[/]", highlight=False)
        table = Table("method.name", "method", "what it does", show_header=False, box=None, padding=(0, 2))
        for entry in question.entries:
            table.add_row(entry.key, entry.name, entry.about)
        out.print(table, highlight=False)
