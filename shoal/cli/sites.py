"""`shoal sites`: the study of a lead whose samples lie at sites."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.console import out, say, table_of
from shoal.engine.settings import places

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Lead a study over sites that dial in: make it, approve sites, and keep their connections.",
)


@app.command(epilog="Example: shoal sites init --name lungs --address lead.example.org:8443")
def init(
    name: Annotated[str, typer.Option(help="of the study")],
    address: Annotated[str, typer.Option(help="host and port where sites reach this machine")],
) -> None:
    """Make a study: the authority that signs for its sites, and the key of its server."""
    from shoal.core.errors import ShoalError
    from shoal.engine.sites.study import make_study

    host, _, port = address.rpartition(":")
    if not host or port not in map(str, range(1, 65536)):
        raise ShoalError(f"--address is {address!r}: give a host and a port, such as lead.example.org:8443")
    study = make_study(places.home(), name, host, int(port))
    say(f"the study {name} is led from {study.folder}; its fingerprint is {study.fingerprint}")
    say("next: shoal sites invite NAME")


@app.command(epilog="Example: shoal sites invite north")
def invite(site: Annotated[str, typer.Argument(help="name of the site")]) -> None:
    """Say what the person at a site types to join, and the fingerprint to tell on another way, such as by telephone."""
    import yaml

    from shoal.engine.sites.study import PROFILE, open_study

    study = open_study()
    name = yaml.safe_load((study.folder / PROFILE).read_text())["name"]
    say(f"at the site:  shoal site init --name {site} --study {name}")
    say(f"then here:    shoal sites approve {site}.request.zip")
    say(f"at the site:  shoal site join {site}.signed.zip --fingerprint {study.fingerprint}")


@app.command(epilog="Example: shoal sites approve north.request.zip")
def approve(
    request: Annotated[Path, typer.Argument(help="what the site sent: NAME.request.zip", exists=True, dir_okay=False)],
) -> None:
    """Sign for a site: from now on it can connect, and runs need it."""
    from shoal.engine.sites.study import approve, open_study

    name, signed = approve(open_study(), request)
    say(f"site {name} is approved: send it {signed}")


@app.command(epilog="Example: shoal sites serve")
def serve() -> None:
    """Keep the connections of the sites, for the runs of this machine, until Ctrl-C."""
    from shoal.engine.sites.server import serve
    from shoal.engine.sites.study import open_study

    study = open_study()
    say(f"sites connect to {study.host}:{study.port}")
    serve(study)


@app.command(epilog="Example: shoal sites status")
def status() -> None:
    """Show each site: when it was seen, its code, torch and samples, its certificate, and what it said to a dry run."""
    from datetime import datetime

    from shoal.engine.sites.gathering import samples_at_sites
    from shoal.engine.sites.server import status_of
    from shoal.engine.sites.study import open_study
    from shoal.engine.store.code_version import shoal_version

    study = open_study()
    samples = samples_at_sites(places.store())
    rows = []
    for site, told in status_of(study).items():
        left = datetime.fromisoformat(study.valid_until(site)).timestamp() - time.time()
        rows.append(
            (
                site,
                "yes" if told.connected else "no",
                "never" if told.seen is None else f"{time.time() - told.seen:.0f} s ago",
                "as here" if told.code == shoal_version().sha256 else told.code[:12],
                told.torch,
                ", ".join(f"{name}: {count:,}" for name, count in samples.get(site, {}).items()),
                f"{left / 86400:.0f}",
            )
        )
    out.print(table_of(("site", "connected", "seen", "code", "torch", "samples", "days left"), rows, "sites"))
    if study.answers.exists():
        said = datetime.fromtimestamp(study.answers.stat().st_mtime)
        say(f"the last `shoal run --dry-run`, {said:%Y-%m-%d %H:%M}:\n{study.answers.read_text()}")
