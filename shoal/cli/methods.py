"""`shoal methods`: the methods by the question that each answers."""

from __future__ import annotations

import typer
from rich.table import Table

from shoal.cli.console import out
from shoal.methods.index import methods_by_question

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal methods")
def methods() -> None:
    """List the methods by the question that each answers. `shoal data show SET` says which one fits a data set."""
    for question, kinds in methods_by_question().items():
        out.print(f"[bold]{question}[/]", highlight=False)
        table = Table("method.name", "method", "what it does", show_header=False, box=None, padding=(0, 2))
        for kind in kinds:
            table.add_row(kind.name, kind.title, kind.about)
        out.print(table, highlight=False)
