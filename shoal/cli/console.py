"""What commands share: the two consoles, a run with its progress, and results as tables."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shoal.core.errors import escaped

if TYPE_CHECKING:  # pandas takes a while to import, and most commands show no result
    from shoal.review.results.comparison import ComparedRun
    from shoal.review.results.result import RunResult
    from shoal.studies.claims import CheckedClaim
    from shoal.studies.result import StudyResult


class NameSafeConsole(Console):
    """A console that shows names from outside as they are where they can be printed, and escaped where they cannot.

    Control characters in a file's name could move the cursor or colour the terminal.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, without control characters but the end of a line."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(escaped, text.split("\n"))), segment.style)


def escape_outside_the_alphabet() -> None:
    """Have both outputs escape letters that their encoding lacks: under cron, or in an ISO-8859 or ASCII locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


escape_outside_the_alphabet()
# A pipe has no width; tables should not be folded to 80 columns there.
out = NameSafeConsole() if sys.stdout.isatty() else NameSafeConsole(width=140)
err = NameSafeConsole(stderr=True)


def cell(value: object) -> Text:
    """Return a value as a cell of a table: numbers with three digits, names on one line, nothing read as markup."""
    return Text(f"{value:.3f}") if isinstance(value, float) else Text(escaped(value))


def execute(folder: Any) -> RunResult:
    """Drive a run with progress on standard error, as a Prefect flow where one is wanted."""
    from shoal.flows.execute import execute as to_its_end
    from shoal.lifecycle.progress import progress

    if chosen := folder.lineage().clusters_chosen:
        err.print(f"{chosen.clusters} clusters: {chosen.rule}", highlight=False, soft_wrap=True)
    with progress(err) as observe:
        try:
            return to_its_end(folder, [observe])
        except KeyboardInterrupt:
            err.print(f"interrupted; go on with: shoal run --resume {folder.name}", highlight=False)
            raise


def show_result(result: RunResult) -> None:
    """A run's result as a table."""
    from shoal.review.results.result import shown_metrics

    table = Table("metric", "value", title=f"{result.status} after {result.rounds} rounds")
    for name, value in shown_metrics(result).items():
        table.add_row(name, f"{value:.4f}")
    for way, count in result.bytes.items():
        table.add_row(f"bytes {way}", f"{count:,}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    out.print(table)
    out.print(f"run: {result.run}", highlight=False, soft_wrap=True)
    out.print(f"report: {result.run}/report.html", highlight=False, soft_wrap=True)
    if result.quality:
        out.print(f"clusters: {result.run}/clusters.parquet", highlight=False, soft_wrap=True)


def results_table(runs: Sequence[ComparedRun], *, brief: bool = False) -> Table:
    """Runs side by side: method, scores, bytes, seconds; unless `brief` also the run, its data and state."""
    from shoal.methods.scores.metrics import shown_in

    table = Table(*(() if brief else ("run", "data", "state")), "method", "rounds")
    numbers = [{**run.result.metrics, **run.result.quality} for run in runs]
    known = [metric for metric in shown_in("comparison") if any(metric.name in found for found in numbers)]
    # Where no run has labels, what needs none; beside the others there is no room.
    judged = any(metric.labels for metric in known)
    metrics = [metric.name for metric in known if metric.labels or not judged]
    delayed = any(run.delay is not None for run in runs)
    for name in (*metrics, "MB up", "MB down", "MB d2d", "seconds", *(["delay, s"] if delayed else [])):
        table.add_column(name, justify="right")
    for run, own in zip(runs, numbers, strict=True):
        result = run.result
        scores = [f"{own[m]:.3f}" if m in own else "" for m in metrics]
        moved = [f"{result.bytes[way] / 1e6:.1f}" for way in ("up", "down", "d2d")]
        last = [] if run.delay is None else [f"{run.delay:.0f}"]
        about = () if brief else (Path(result.run).name, run.data, result.status)
        table.add_row(*about, run.method, str(result.rounds), *scores, *moved, f"{result.seconds:.0f}", *last)
    return table


def show_study(result: StudyResult) -> None:
    """A study's table and claims."""
    out.print(f"[bold]{result.study}[/] at scale {result.scale}: {result.about}", highlight=False)
    table = Table("row", "column", "metric", "ours", "seeds", "paper")
    digits = 1 if result.percent else 3
    for row in result.rows:
        paper = "" if row.paper is None else f"{row.paper:.{digits}f}"
        ours = f"{row.mean:.{digits}f} ± {row.std:.{digits}f}"
        table.add_row(row.row, row.column, row.metric, ours, str(row.seeds), paper)
    out.print(table)
    for claim in result.claims:
        show_claim(claim)
    for run in result.failed:
        place = f"{run.row}, {run.column}, seed {run.seed}"
        out.print(f"failed, and has no number: {place}: {run.message}", highlight=False, markup=False)
    out.print(f"tables and figures: {result.folder}", highlight=False, soft_wrap=True)
    out.print(f"report: {result.folder}/report.html", highlight=False, soft_wrap=True)


def show_claim(claim: CheckedClaim) -> None:
    """A claim in a line: the verdict, the statement, and in brackets the differences over seeds."""
    from shoal.cli.claims import COLOURS
    from shoal.studies.wording import measured, why

    said = "; ".join(filter(None, (measured(claim), why(claim))))
    colour = COLOURS.get(claim.verdict, "yellow")
    out.print(f"[{colour}]{claim.verdict}[/]  {claim.claim}{f' ({said})' if said else ''}", highlight=False)
