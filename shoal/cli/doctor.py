"""`shoal doctor`: check packages, devices, data and servers, and say how to repair what is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.text import Text

from shoal.cli.console import out, table_of
from shoal.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal doctor --json")
def doctor(as_json: Json = False) -> None:
    """Check packages, devices, data and servers, and say how to repair what is wrong."""
    from shoal.cli.checks import checks

    results = checks()
    if as_json:
        print(json.dumps([asdict(check) for check in results]))
    else:
        rows = []
        for check in results:
            word = "[green]ok[/]" if check.ok else "[yellow]absent[/]" if check.optional else "[red]wrong[/]"
            rows.append((check.name, Text.from_markup(word), check.detail, check.repair))
        out.print(table_of(("check", "", "detail", "how to repair"), rows))
    if not all(check.ok or check.optional for check in results):
        raise typer.Exit(1)
