"""`shoal claims`: keep results, make the pages of docs/results, and show the verdict on every claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.console import err, out
from shoal.cli.options import Json
from shoal.core.errors import ShoalError
from shoal.engine.settings.private_home import project_files
from shoal_research.commands.options import COLOURS, Scale

if TYPE_CHECKING:
    from shoal_research.verdicts import Entry


app = typer.Typer(add_completion=False)


@app.command(epilog="Example: shoal claims --keep cfl-toy-paths --write")
def claims(
    names: Annotated[list[str] | None, typer.Argument(metavar="STUDY...", help="studies; by default all")] = None,
    kept: Annotated[
        str, typer.Option("--keep", metavar="STUDY", help="keep the newest result of this study, for docs/results")
    ] = "",
    scale: Scale = "cpu",
    write: Annotated[bool, typer.Option("--write", help="write the tables of docs/results.md and its pages")] = False,
    docs: Annotated[
        Path | None, typer.Option(help="folder of kept results and pages; by default those of this installation")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the verdicts on the papers' claims, from the kept results."""
    from shoal_research.definition import load_study, study_names
    from shoal_research.kept import keep
    from shoal_research.pages import write_pages
    from shoal_research.verdicts import entries

    docs = folder_of(docs, made=bool(kept))
    with project_files():
        if kept:
            err.print(f"kept: {keep(load_study(kept), scale, docs)}", highlight=False, soft_wrap=True)
        if write:
            for path in write_pages(docs):
                err.print(f"written: {path.relative_to(docs.parent)}", highlight=False, soft_wrap=True)
    chosen = names or ([kept] if kept else study_names())
    found = [entry for name in chosen for entry in entries(load_study(name), docs)]
    if as_json:
        print(json.dumps([entry_json(entry) for entry in found]))
        return
    study = ""
    for entry in found:
        if entry.study.name != study:
            study = entry.study.name
            out.print(f"[bold]{study}[/]: {entry.study.title}", highlight=False)
        show(entry)


def folder_of(docs: Path | None, *, made: bool) -> Path:
    """Return the folder of kept results and pages: the one that is named, or that of this installation.

    Args:
        docs: the folder that is named.
        made: whether the folder is made where there is none.

    Raises:
        ShoalError: there is no such folder.
    """
    from shoal_research.kept import DOCS

    if docs is None:
        return DOCS
    docs = docs.resolve()
    if not made and not docs.is_dir():
        raise ShoalError(f"there is no folder {docs}: --keep STUDY makes it, and keeps a result in it")
    return docs


def show(entry: Entry) -> None:
    """Print a claim on one line."""
    from shoal_research.wording import is_partly_run, notes, verdict_word

    colour = COLOURS.get(entry.verdict, "yellow")
    marks = ("settings have changed since" * entry.stale, "the rule was written after the run" * entry.later)
    text = notes(entry.checked, *marks)
    end = f": {entry.command}"
    if text:
        end = f" ({text})"
    elif entry.cost:
        end = f": {entry.cost}: {entry.command}"
    word = verdict_word(entry.checked) if is_partly_run(entry.checked) else entry.verdict
    out.print(f"  [{colour}]{word}[/]  {entry.claim.claim}, {entry.scale}{end}", highlight=False)


def entry_json(entry: Entry) -> dict[str, object]:
    """Return a claim as JSON."""
    checked = entry.checked
    interval = checked.interval
    return {
        "study": entry.study.name,
        "scale": entry.scale,
        "claim": entry.claim.claim,
        "verdict": entry.verdict,
        **{name: getattr(interval, name, None) for name in ("mean", "low", "high", "visible")},
        "looked_for": checked.looked_for,
        "differences": checked.differences,
        "seeds": checked.of_seeds,
        "planned": checked.seeds,
        "stale": entry.stale,
        "later": entry.later,
        "source": entry.study.source_of(entry.claim),
        "note": checked.note,
        "cost": entry.cost,
        "command": entry.command,
    }
