"""`shoal study`: one table or figure of a paper."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table

from shoal.cli.console import err, out, say
from shoal.cli.options import Set
from shoal_research.commands.options import Scale, claim_line

if TYPE_CHECKING:
    from shoal.engine.store.run_events import Observer
    from shoal.engine.store.run_folder import RunFolder
    from shoal_research.runner import StudyResult


app = typer.Typer(add_completion=False)


def typed(value: Any) -> Any:
    """Return nested text with the types that YAML gives it, as in the file of a study."""
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    if isinstance(value, str):
        return yaml.safe_load(value)
    return value


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
        bool, typer.Option("--gather", help="run nothing, and make the table from what was measured")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="measure at the present commit what an earlier one has measured")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(min=1, help="runs at once, each in a process: for small networks on a GPU, with workers.slots=1"),
    ] = 1,
    overrides: Set = None,
) -> None:
    """Reproduce one table or figure of a paper. Prints our numbers beside the paper's, and its claims with verdicts.

    Cells that are kept, or that were measured here, are not measured again.
    """
    from shoal.engine.settings.merge import merge
    from shoal.engine.settings.run_settings import parse_override
    from shoal.engine.store.lineage import current_environment
    from shoal.lifecycle.progress import progress
    from shoal_research.definition import load_study, study_names
    from shoal_research.runner import run_study

    if name == "list":
        for known in study_names():
            out.print(f"{known}: {load_study(known).title}", highlight=False)
        return
    with progress(err) as observe:

        def watch(label: str, run: RunFolder) -> Observer:
            err.print(label, highlight=False)
            return observe

        if current_environment().shoal.git.dirty and not gather:
            err.print("the work tree differs from its commit: this result cannot be kept (shoal claims --keep)")
        changes = typed(merge({}, *map(parse_override, overrides or ())))
        cells: dict[str, Any] = {"rows": row or (), "columns": column or (), "gather": gather, "again": again}
        try:
            result = run_study(name, scale, seeds, changes, watch, **cells, processes=processes)
        except KeyboardInterrupt:
            err.print("interrupted; the same command resumes the study", highlight=False)
            raise
    show_study(result)


def show_study(result: StudyResult) -> None:
    """Print a study's table and claims."""
    study = result.study
    columns = study.columns_at(result.scale)
    out.print(f"[bold]{study.name}[/] at scale {result.scale}: {study.scales[result.scale].about}", highlight=False)
    table = Table("row", "column", "metric", "ours", "seeds", "paper")
    digits = 1 if study.percent else 3
    for (row, column, metric), by_seed in result.table.items():
        if row not in study.rows or column not in columns:
            continue
        values = list(by_seed.values())
        ours = f"{statistics.fmean(values):.{digits}f}"
        if len(values) > 1:
            ours += f" ± {statistics.stdev(values):.{digits}f}"
        published = study.published(row, column, metric)
        paper = "" if published is None else f"{published:.{digits}f}"
        captions = (study.rows[row].caption, columns[column].caption)
        table.add_row(*captions, metric, ours, str(len(values)), paper)
    out.print(table)
    for one in result.claims:
        out.print(claim_line(one), highlight=False)
    for words in result.failed:
        say(f"failed, and has no number: {words}")
    say(f"figures, and cells of every seed: {result.folder}")
