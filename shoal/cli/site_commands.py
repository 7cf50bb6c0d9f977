"""`shoal site`: what the person at a site decides and sees. Everything lies in the folder `site` of the site's home."""

from __future__ import annotations

import typer

from shoal.cli.console import say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep a site: its policy, the runs that it approves, and the log of what left it.",
)


@app.command(epilog="Example: shoal site policy")
def policy() -> None:
    """Check the site's policy and show where it lies; a site without one gets a strict one to edit."""
    say("")
