"""`shoal open`: the report of a run, in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from shoal.cli.console import say

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal open latest")
def open_report(
    name: Annotated[
        str, typer.Argument(metavar="RUN", help="a run: its folder, its name, or latest, the last finished one")
    ] = "latest",
    show: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open a browser, or only print the address")
    ] = True,
) -> None:
    """Open the report of a run."""
    from shoal.api.opened import load

    address = load(name).report.as_uri()
    say(address)
    if show and not webbrowser.open(address):
        say("no browser could be opened here: copy the address")
