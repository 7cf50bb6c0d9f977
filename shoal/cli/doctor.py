"""`shoal doctor`: check methods, devices, data and servers, and say how to repair what is wrong."""

from __future__ import annotations

import typer
from rich.text import Text

from shoal.cli.console import out, table_of

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal doctor")
def doctor() -> None:
    """Check methods, devices, data and servers, and say how to repair what is wrong."""
    from shoal.cli.checks import checks

    results = checks()
    rows = []
    for check in results:
        word = "[green]ok[/]" if check.ok else "[yellow]absent[/]" if check.optional else "[red]wrong[/]"
        rows.append((check.name, Text.from_markup(word), check.detail, check.repair))
    out.print(table_of(("check", "", "detail", "how to repair"), rows))
    if not all(check.ok or check.optional for check in results):
        raise typer.Exit(1)
