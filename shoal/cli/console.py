"""The two consoles, and results as tables, which commands share."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from numbers import Integral, Number, Real
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shoal.core.errors import escaped

if TYPE_CHECKING:  # pandas takes a while to import, and most commands show no result
    import pandas as pd

    from shoal.review.results.result import RunResult


class NameSafeConsole(Console):
    """A console that prints names from outside with their control characters escaped.

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


def escape_unencodable() -> None:
    """Let both outputs escape letters that their encoding lacks: under cron, or in an ISO-8859 or ASCII locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


escape_unencodable()
# A pipe has no width: there tables must not be folded to 80 columns.
out = NameSafeConsole(width=None if sys.stdout.isatty() else 200)
err = NameSafeConsole(stderr=True)


def say(text: str) -> None:
    """Print a line on standard output, unbroken and without markup."""
    out.print(text, highlight=False, soft_wrap=True, markup=False)


def cell(value: object) -> Text:
    """Return a value as a cell of a table: numbers with three digits, names on one line, nothing read as markup."""
    if isinstance(value, Text):
        return value
    if value is None or value != value:  # None, or the number that tables have in its place
        return Text()
    if isinstance(value, Integral):
        return Text(f"{int(value):,}")
    if isinstance(value, Real):
        return Text(f"{float(value):.3f}")
    return Text(escaped(value))


def table_of(headings: Iterable[object], rows: Iterable[Iterable[object]], title: str | Text | None = None) -> Table:
    """Return rows as a table that folds what does not fit; columns of numbers stand at the right.

    Args:
        headings: of the columns.
        rows: a value for each heading, as `cell` takes it.
        title: above the table; as `Text` where it holds a name from outside.
    """
    table = Table(title=title, title_justify="left")
    values = [list(row) for row in rows]
    for place, heading in enumerate(headings):
        numbers = any(isinstance(row[place], Number) for row in values)
        table.add_column(cell(heading), justify="right" if numbers else "left", overflow="fold")
    for row in values:
        table.add_row(*map(cell, row))
    return table


def frame_table(frame: pd.DataFrame, title: str | Text | None = None) -> Table:
    """Return a data frame as `table_of` shows it, its columns named in words."""
    headings = [str(column).replace("_", " ") for column in frame.columns]
    return table_of(headings, frame.itertuples(index=False), title)


def shoal_command(name: str = "shoal", folder: Path | None = None) -> str:
    """Return how a program of this installation is called in a folder, by default the current one.

    By a relative path if it lies below the folder, by its name if the shell finds it, else by its whole path.
    """
    called = Path(sys.argv[0]).absolute()
    if called.name != "shoal":
        return name
    program = called.with_name(name)
    here = Path.cwd() if folder is None else folder.absolute()
    if program.is_relative_to(here):
        return str(program.relative_to(here))
    return name if shutil.which(name) else str(program)


def show_result(result: RunResult, title: str) -> None:
    """Print a run's result as a table, under a title that says how many of its rounds it has done."""
    from shoal.review.results.number_names import name_of, value_of
    from shoal.review.results.result import shown_metrics

    sent = {f"bytes_{way}": count for way, count in result.bytes.items() if count or way != "d2d"}
    numbers = {**shown_metrics(result), **sent, "seconds": result.seconds}
    rows = [(name_of(key), value_of(key, value)) for key, value in numbers.items()]
    out.print(table_of(("number", "value"), rows, title))
    if result.verdict is not None:
        say(f"verdict: {result.verdict.word}. {result.verdict.reason}")
    say(f"run: {result.run}")
    say(f"report: {result.run}/report.html")
    if Path(result.run, "clusters.parquet").exists():  # at sites each keeps its own
        say(f"clusters: {result.run}/clusters.parquet")
