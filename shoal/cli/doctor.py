"""`shoal doctor`: check packages, devices, data and servers, and say how to repair what is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.table import Column, Table

from shoal.cli.console import out
from shoal.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal doctor --json")
def doctor(as_json: Json = False) -> None:
    """Check packages, devices, data and servers, and say how to repair what is wrong."""
    from shoal.cli.checks import checks

    found = checks()
    if as_json:
        print(json.dumps([asdict(check) for check in found]))
    else:
        table = Table("check", "", Column("detail", overflow="fold"), "how to repair")
        for check in found:
            failure = "[red]wrong[/]"
            if check.optional:
                failure = "[yellow]absent[/]"
            table.add_row(check.name, "[green]ok[/]" if check.ok else failure, check.detail, check.repair)
        out.print(table)
    if not all(check.ok or check.optional for check in found):
        raise typer.Exit(1)
