"""`shoal site`: what the person at a site decides and sees. Everything lies in the folder `site` of the site's home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import err, say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep a site: its policy, the runs that it approves, and the log of what left it.",
)


@app.command(epilog="Example: shoal site policy")
def policy() -> None:
    """Check the site's policy and show where it lies; a site without one gets a strict one to edit."""
    say("")


@app.command(epilog="Example: shoal site init --name north --study lungs")
def init(
    name: Annotated[str, typer.Option(help="of this site")],
    study: Annotated[str, typer.Option(help="name of the lead's study")],
) -> None:
    """Make the site's key, which stays here, and the request to send to the lead."""
    from shoal.engine.settings import places
    from shoal.engine.sites.study import request

    path = request(places.home() / "site", study, name, {"type": "client", "org": name})
    say(f"send the lead {path}, which holds no secret; keep {path.parent}, where the key is")


@app.command(epilog="Example: shoal site join north.signed.zip --fingerprint SHA256:3F:...")
def join(
    signed: Annotated[Path, typer.Argument(help="what the lead sent back", exists=True, dir_okay=False)],
    fingerprint: Annotated[str, typer.Option(help="of the lead's study, as it was told by telephone")],
) -> None:
    """Take what the lead has signed, if it has this fingerprint."""
    from shoal.engine.settings import places
    from shoal.engine.sites.study import package

    package(places.home() / "site", signed, fingerprint)
    say("joined; next: shoal data add, shoal site policy, shoal site serve")


@app.command(epilog="Example: shoal site serve")
def serve() -> None:
    """Connect to the lead and answer it by the site's policy, until Ctrl-C."""
    import os
    import sys

    if not sys.flags.safe_path:  # no module of the current folder may take the place of another
        os.execv(sys.executable, [sys.executable, "-P", "-m", "shoal.cli.main", "site", "serve"])
    from shoal.engine.settings import places
    from shoal.engine.sites.site_service import serve_site

    serve_site(places.home(), places.store(), lambda there: err.print("connected" if there else "not connected"))
