"""`shoal site`: what the person at a site decides and sees; its rules and its log lie in `site` of its home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import cell, err, out, say, table_of
from shoal.core.errors import ShoalError
from shoal.engine.settings import places

if TYPE_CHECKING:
    from shoal.engine.sites.own_rules import OwnRules
    from shoal.engine.store.run_folder import RunFolder

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Keep a site: its policy, the runs that it approves, and the log of what left it.",
)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="id of a run, as the lead's message names it, or its start")]


@app.command(epilog="Example: shoal site policy")
def policy() -> None:
    """Check the site's policy, show where it lies and which runs wait; where there is none, write a strict one."""
    from shoal.engine.sites.policy import read_policy, write_strict_policy
    from shoal.engine.store.code_version import shoal_version

    rules = own_rules()
    path = rules.folder / "policy.yaml"
    if not path.exists():
        write_strict_policy(path)
    allowed = read_policy(path)
    say(f"policy             {path}")
    say(f"sets               {', '.join(allowed.data) or 'none: every run is refused'}")
    say(f"methods            {', '.join(allowed.methods) or 'none: every run is refused'}")
    known = "approved" if shoal_version().sha256 in allowed.code else "not approved: every run is refused"
    say(f"Shoal here         {shoal_version().sha256}, {known}")
    say(f"key of its masks   {rules.public_key}")
    for run in rules.waiting():
        say(f"a run waits        shoal site approve {run[:8]}")


@app.command(epilog="Example: shoal site approve 5f0c")
def approve(run: RunId, yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False) -> None:
    """Show the settings of a run that waits, and let it go on with these settings alone."""
    from shoal.data.sets.prepared import read_manifest
    from shoal.engine.sites.own_rules import RESUME
    from shoal.lifecycle.site_baseline import baseline_at_site

    place = run_here(run)
    settings = place.settings()
    say((place.path / "settings.yaml").read_text().rstrip())
    baseline = baseline_at_site(settings, read_manifest(place.folder_of("data")))
    if baseline is not None:
        say(f"It brings a null baseline on the same set: {baseline.method.name}, at most {baseline.rounds} rounds.")
    if yes or typer.confirm("May this run train here?"):
        own_rules().approve(place.name, settings)
        if baseline is not None:
            own_rules().approve(baseline.digest(), baseline)
        say(f"run {place.name} may go on, as far as the policy allows it; {RESUME}")


@app.command(epilog="Example: shoal site log --run 5f0c")
def log(run: Annotated[str, typer.Option(help="beginning of the id of a run; by default all")] = "") -> None:
    """List every message that left the site, after checking that no line is missing or changed."""
    rules = own_rules()
    rows = []
    for line in rules.log.entries():
        if line["run"].startswith(run):
            names = [*line["facts"], *(f"{n} {a}" for file in line["files"] for n, a in file["arrays"].items())]
            said = line["refused"] or ", ".join(names)
            shown = [line[name] for name in ("round", "method", "do", "bytes")]
            rows.append((line["time"], line["run"][:8], *shown, line["sha256"][:12], said))
    columns = ("time", "run", "round", "method", "asked", "bytes", "digest", "names and shapes, or refusal")
    out.print(table_of(columns, rows))
    say(f"{rules.log.path}: complete")


@app.command(epilog="Example: shoal site report 5f0c")
def report(run: RunId) -> None:
    """List the clusters of this site's own samples, and draw a sheet of images of each; nothing of it leaves."""
    from shoal.data.sets.prepare import own_folder
    from shoal.data.sets.prepared import open_prepared
    from shoal.engine.sites.site_table import TABLE, site_table
    from shoal.review.pages.cluster_sheets import draw_sheets

    place = run_here(run)
    table = site_table(place)
    sizes = table["cluster"].value_counts().sort_index()
    rows = [(cluster, size, f"{size / len(table):.1%}") for cluster, size in sizes.items()]
    out.print(table_of(("cluster", "samples here", "share"), rows))
    say(f"samples with their files: {place.path / TABLE}")
    own = open_prepared(own_folder(places.store(), place.settings().data.name))
    if sheets := draw_sheets(place, table, own):
        say(f"images of {len(sheets)} clusters: {sheets[0].parent}")


@app.command(epilog="Example: shoal site pause")
def pause(off: Annotated[bool, typer.Option("--off", help="answer again")] = False) -> None:
    """Refuse everything until `shoal site pause --off`."""
    path = own_rules().folder / "paused"
    if off:
        path.unlink(missing_ok=True)
    else:
        path.touch()
    say("the site answers" if off else "the site is paused: it refuses everything")


@app.command(epilog="Example: shoal site forget 5f0c")
def forget(run: RunId) -> None:
    """Remove a run from this site, with its private memories, and refuse it from now on; the log keeps its lines."""
    import shutil

    from shoal.core.durable import private_folder

    place = run_here(run)
    rules = own_rules()
    private_folder(rules.forgotten(place.name).parent)
    rules.forgotten(place.name).touch()
    rules.approval(place.name).unlink(missing_ok=True)
    shutil.rmtree(place.path)
    say(f"run {place.name} is forgotten here, and refused from now on")


@app.command(epilog="Example: shoal site init --name north --study lungs")
def init(
    name: Annotated[str, typer.Option(help="of this site")],
    study: Annotated[str, typer.Option(help="name of the lead's study")],
) -> None:
    """Make the site's key, which stays here, and the request to send to the lead."""
    from shoal.engine.sites.study import request

    path = request(places.site(), study, name)
    say(f"send the lead {path}, which holds no secret; keep {path.parent}, where the key is")


@app.command(epilog="Example: shoal site join north.signed.zip --fingerprint SHA256:3F:...")
def join(
    signed: Annotated[Path, typer.Argument(help="what the lead sent back", exists=True, dir_okay=False)],
    fingerprint: Annotated[str, typer.Option(help="of the lead's study, as it was told by telephone")],
) -> None:
    """Take what the lead has signed, if it has this fingerprint."""
    from shoal.engine.sites.study import package

    package(places.site(), signed, fingerprint)
    say("joined; next: shoal data add, shoal site policy, shoal site serve")


@app.command(epilog="Example: shoal site serve")
def serve() -> None:
    """Connect to the lead and answer it by the site's policy, until Ctrl-C."""
    import os
    import sys

    if not sys.flags.safe_path:  # no module of the current folder may take the place of another
        os.execv(sys.executable, [sys.executable, "-P", "-m", "shoal.cli.main", "site", "serve"])
    from shoal.engine.sites.own_rules import OwnRules
    from shoal.engine.sites.site_service import serve_site
    from shoal.lifecycle.site_nights import take_in_at_site

    serve_site(
        places.site(),
        places.store(),
        places.runs(),
        OwnRules(places.site(), take_in_at_site, lambda refusal: err.print(cell(refusal), soft_wrap=True)),
        lambda there: err.print("connected" if there else "not connected"),
    )


def own_rules() -> OwnRules:
    """Return the rules of the site of this home."""
    from shoal.engine.sites.own_rules import OwnRules

    return OwnRules(places.site())


def run_here(name: str) -> RunFolder:
    """Return the run whose id begins with a name, though it may not be whole: `forget` removes it.

    Raises:
        ShoalError: there is none, or more than one.
    """
    from shoal.engine.store.run_folder import RunFolder

    matches = [path for path in places.runs().glob("*") if path.name.startswith(name)]
    if len(matches) != 1:
        raise ShoalError(f"{len(matches)} runs here have an id that begins with {name!r}, expected one")
    return RunFolder(matches[0])
