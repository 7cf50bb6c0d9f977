"""`shoal study`: one table or figure of a paper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from shoal.cli.console import err, out, say, shown_number
from shoal.cli.options import Json, Set
from shoal.core.errors import ShoalError
from shoal.engine.settings.yaml_text import read_yaml
from shoal_research.commands.options import COLOURS, Scale

if TYPE_CHECKING:
    from shoal.engine.store.run_events import Observer
    from shoal.engine.store.run_folder import RunFolder
    from shoal_research.result import StudyResult


app = typer.Typer(add_completion=False)


def typed(values: dict[str, Any]) -> dict[str, Any]:
    """Return nested text with the types that YAML gives it, as in the file of a study."""
    return {key: typed(value) if isinstance(value, dict) else yaml_value(value) for key, value in values.items()}


def yaml_value(value: Any) -> Any:
    """Return a text as YAML reads it."""
    return read_yaml(value, "--set", ShoalError) if isinstance(value, str) else value


@app.command(epilog="Example: shoal study fedpnp-table1 --scale cpu --seeds 3")
def study(
    name: Annotated[str, typer.Argument(help="a study; `shoal study list` names all")],
    scale: Scale = "cpu",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="number of runs of each cell of the table (default: as in the study)")
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="key or caption of a row; by default all; repeatable")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="key or caption of a column; by default all; repeatable")
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="run nothing, and make the table from the runs that have ended")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(min=1, help="runs at once, each in a process: for small networks on a GPU, with workers.slots=1"),
    ] = 1,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Reproduce one table or figure of a paper. Prints our numbers beside the paper's, and its claims with verdicts."""
    from shoal.engine.settings.run_settings import parse_overrides
    from shoal.engine.store.lineage import current_environment
    from shoal.lifecycle.progress import progress
    from shoal_research.definition import load_study, study_names
    from shoal_research.runner import run_study

    if name == "list":
        for each in study_names():
            out.print(f"{each}: {load_study(each).title}", highlight=False)
        return
    with progress(err) as observe:

        def watch(label: str, run: RunFolder | None) -> Observer:
            err.print(label, highlight=False)
            return observe

        if current_environment().shoal_git.dirty and not gather:
            err.print("the work tree differs from its commit: this result cannot be kept (shoal claims --keep)")
        changes = typed(parse_overrides(overrides or ()))
        chosen = {"rows": row or (), "columns": column or ()}
        try:
            result = run_study(name, scale, seeds, changes, watch, **chosen, gather=gather, processes=processes)
        except KeyboardInterrupt:
            err.print("interrupted; the same command resumes the study", highlight=False)
            raise
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        show_study(result)


def show_study(result: StudyResult) -> None:
    """Print a study's table and claims."""
    from shoal_research.wording import notes, verdict_word

    out.print(f"[bold]{result.study}[/] at scale {result.scale}: {result.about}", highlight=False)
    table = Table("row", "column", "metric", "ours", "seeds", "paper")
    digits = 1 if result.percent else 3
    for row in result.rows:
        paper = shown_number(row.paper, f".{digits}f")
        ours = f"{row.mean:.{digits}f}"
        if row.seeds > 1:
            ours += f" ± {row.std:.{digits}f}"
        table.add_row(row.row, row.column, row.metric, ours, str(row.seeds), paper)
    out.print(table)
    for claim in result.claims:
        text = notes(claim)
        colour = COLOURS.get(claim.verdict, "yellow")
        end = f" ({text})" if text else ""
        out.print(f"[{colour}]{verdict_word(claim)}[/]  {claim.claim}{end}", highlight=False)
    for run in result.failed:
        place = f"{run.row}, {run.column}, seed {run.seed}"
        say(f"failed, and has no number: {place}: {run.message}")
    say(f"tables and figures: {result.folder}")
    say(f"report: {result.folder}/report.html")
