"""`shoal claims`: keep results, make the pages of docs/results, and show the verdict on every claim."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shoal.cli.console import err, out
from shoal.cli.options import Json
from shoal.engine.settings.private_home import project_files
from shoal_research.commands.options import Scale, claim_json, claim_line

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal claims --keep cfl-gap-rounds --write")
def claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="STUDY...", help="studies; by default all")] = None,
    kept: Annotated[
        str, typer.Option("--keep", metavar="STUDY", help="keep what was measured of this study, for docs/results")
    ] = "",
    scale: Scale = "cpu",
    write: Annotated[bool, typer.Option("--write", help="write the tables of docs/results.md and its pages")] = False,
    as_json: Json = False,
) -> None:
    """Show the verdicts on the papers' claims, from the kept results."""
    from shoal_research.definition import load_study
    from shoal_research.kept import keep
    from shoal_research.pages import PAGES, judged_page, write_pages

    with project_files():
        if kept:
            err.print(f"kept: {keep(load_study(kept), scale)}", highlight=False, soft_wrap=True)
        if write:
            for path in write_pages():
                err.print(f"written: {path}", highlight=False, soft_wrap=True)
    chosen = names or ([kept] if kept else [])
    pages = dict.fromkeys(load_study(name).page for name in chosen) or PAGES
    found = [one for page in pages for one in judged_page(page) if not chosen or one.study.name in chosen]
    if as_json:
        print(json.dumps([claim_json(one) for one in found]))
        return
    study = ""
    for one in found:
        if one.study.name != study:
            study = one.study.name
            out.print(f"[bold]{study}[/]: {one.study.title}", highlight=False)
        out.print(f"  {claim_line(one)}", highlight=False)
