"""Runs side by side on one self-contained HTML page: numbers, curves, and the settings and origins that differ."""

from __future__ import annotations

import string
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import flatten
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import DESCRIBED, METRICS, shown_in
from shoal.review.pages.figures import compare_curves
from shoal.review.pages.pages import in_base64, write_page
from shoal.review.pages.provenance import lineage_rows, value_in_table
from shoal.review.results.comparison import check_different, why_not_comparable
from shoal.review.results.number_names import name_of, value_of
from shoal.review.results.result import WAYS, RunResult, run_result, shown_metrics
from shoal.review.results.summary import duration, size
from shoal.review.results.views import REPORT

MAX_RUNS = len(string.ascii_uppercase)
"""Runs of a page: each has a letter."""
OF_THE_RUN = ("MLflow run", "Prefect flow run", "settings")
"""Rows of lineage that differ between any two runs."""
TOLERANCE = 5e-5
"""Numbers that differ by less count as equal, and none of them is called the best."""


@dataclass(frozen=True)
class RunColumn:
    """One run of a comparison.

    Attributes:
        letter: its name on the page.
        folder: of the run.
        result: of the run.
    """

    letter: str
    folder: RunFolder
    result: RunResult

    @property
    def words(self) -> str:
        """Method, data, partition and seed."""
        settings = self.folder.settings()
        return f"{settings.method.name} on {settings.data.name}, {settings.partition.kind}, seed {settings.seed}"


@dataclass(frozen=True)
class Line:
    """One number of all runs.

    Attributes:
        name: of the number.
        words: its meaning; may be empty.
        better: higher, lower or neither.
        values: the texts to show, one a run of the group; empty where a run has none.
        best: for each run, whether its value is the best.
    """

    name: str
    words: str
    better: str
    values: tuple[str, ...]
    best: tuple[bool, ...]


def write_comparison(folders: Sequence[RunFolder], path: Path) -> Path:
    """Write the page.

    Args:
        folders: of the runs, at least two and at most `MAX_RUNS`.
        path: the HTML file.

    Raises:
        ShoalError: too few or too many runs, or the same one twice.
    """
    if not 2 <= len(folders) <= MAX_RUNS:
        raise ShoalError(f"a page compares 2 to {MAX_RUNS} runs, not {len(folders)}: name 2 to {MAX_RUNS}")
    check_different(folders)
    runs = [
        RunColumn(letter, run, run_result(run)) for letter, run in zip(string.ascii_uppercase, folders, strict=False)
    ]
    origins = [origin_of(run.folder) for run in runs]
    reason = why_not_comparable(folders)
    lines = lines_of(runs)
    if reason is not None:
        lines = [replace(line, best=(False,) * len(runs)) for line in lines]
    return write_page(
        path,
        "comparison.html.j2",
        runs=runs,
        links={run.letter: report_of(run.folder) for run in runs},
        not_comparable=reason,
        lines=lines,
        curves=curves_of(runs),
        name_of=name_of,
        settings=differences([flat_settings(run.folder) for run in runs]),
        same=[name for name in origins[0] if len({origin.get(name) for origin in origins}) == 1],
        origins=differences(origins),
    )


def lines_of(runs: Sequence[RunColumn]) -> list[Line]:
    """Return every number that a run has: those with a description first, then bytes and seconds."""
    numbers = [shown_metrics(run.result) for run in runs]
    described = [metric.name for metric in METRICS if any(metric.name in scores for scores in numbers)]
    others = sorted({name for scores in numbers for name in scores} - set(described))
    lines = []
    for name in (*described, *others):
        words = ""
        better = "neither"
        if name in DESCRIBED:
            words = DESCRIBED[name].words
            better = DESCRIBED[name].better
        values = [scores.get(name) for scores in numbers]
        written = tuple("" if value is None else value_of(name, value) for value in values)
        lines.append(Line(name, words, better, written, best_of(values, better)))
    for way, words in WAYS.items():
        sent = [float(run.result.bytes[way]) for run in runs]
        if any(sent):
            lines.append(Line(f"bytes_{way}", f"sent {words}", "lower", tuple(map(size, sent)), best_of(sent, "lower")))
    seconds = [run.result.seconds for run in runs]
    lines.append(Line("time", "of all rounds", "neither", tuple(map(duration, seconds)), (False,) * len(runs)))
    return lines


def best_of(values: Sequence[float | None], better: str) -> tuple[bool, ...]:
    """Return which of some numbers are the best: none where no direction is better, or where all are equal.

    >>> best_of([0.5, None, 0.7], "higher"), best_of([1.0, 1.0], "lower")
    ((False, False, True), (False, False))
    """
    present = [value for value in values if value is not None]
    if better == "neither" or len(present) < 2 or max(present) - min(present) < TOLERANCE:
        return (False,) * len(values)
    best = min(present)
    if better == "higher":
        best = max(present)
    return tuple(value is not None and abs(value - best) < TOLERANCE for value in values)


def curves_of(runs: Sequence[RunColumn]) -> list[tuple[str, str]]:
    """Return the curves over rounds, one a metric that figures show: its name, and a PNG in base64."""
    tables = {run.letter: run.folder.table("rounds") for run in runs}
    drawn = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*(metric.name for metric in shown_in("figure")), "loss"):
            curves = {letter: table for letter, table in tables.items() if has_values(table, name)}
            if any(len(table[name].dropna()) > 1 for table in curves.values()):
                path = compare_curves(curves, name, Path(scratch) / f"{name}.png")
                drawn.append((name, in_base64(path.read_bytes())))
    return drawn


def has_values(table: pd.DataFrame, name: str) -> bool:
    """Return whether a table of rounds has any value of a metric."""
    return name in table and bool(table[name].notna().any())


def flat_settings(folder: RunFolder) -> dict[str, str]:
    """Return the settings by dotted key, as the page shows them."""
    return {key: value_in_table(value) for key, value in flatten(folder.settings()).items()}


def differences(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Return the keys whose values differ, with their values; a missing value is empty.

    >>> differences([{"a": "1", "b": "2"}, {"a": "1"}])
    [('b', ['2', ''])]
    """
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, [column.get(key, "") for column in columns]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def origin_of(folder: RunFolder) -> dict[str, str]:
    """Return what a run comes from, by name: equal words mean equal bytes."""
    return {row.what: f"{row.name} {row.digest}".strip() for row in lineage_rows(folder) if row.what not in OF_THE_RUN}


def report_of(folder: RunFolder) -> str:
    """Return the address of a run's report; empty where it has none."""
    path = folder.path / REPORT
    if not path.exists():
        return ""
    return path.resolve().as_uri()
