"""Runs side by side on one self-contained HTML page: numbers, curves, and the settings that differ."""

from __future__ import annotations

import string
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import flatten
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.scores.metrics import METRICS, shown_in
from shoal.review.pages.figures import compare_curves
from shoal.review.pages.pages import in_base64, write_page
from shoal.review.pages.provenance import value_in_table
from shoal.review.results.number_names import name_of, value_of
from shoal.review.results.result import WAYS, RunResult, run_result, shown_metrics
from shoal.review.results.runs import check_different, why_not_comparable
from shoal.review.results.views import REPORT

MAX_RUNS = len(string.ascii_uppercase)
"""Runs of a page: each has a letter."""
TOLERANCE = 5e-5
"""Numbers that differ by less count as equal, and none of them is called the best."""


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
    runs = dict(zip(string.ascii_uppercase, folders, strict=False))
    results = [run_result(folder) for folder in folders]
    settings = [flatten(folder.settings()) for folder in folders]
    reason = why_not_comparable(folders)
    return write_page(
        path,
        "comparison.html.j2",
        runs=runs,
        results=dict(zip(runs, results, strict=True)),
        report_of=report_of,
        not_comparable=reason,
        lines=lines_of(results, comparable=reason is None),
        curves=curves_of({letter: folder.table("rounds") for letter, folder in runs.items()}),
        name_of=name_of,
        settings=differences([{key: value_in_table(value) for key, value in flat.items()} for flat in settings]),
    )


def lines_of(results: Sequence[RunResult], *, comparable: bool) -> list[dict[str, Any]]:
    """Return every number that a run has: those with a description first, then bytes and seconds.

    Returns:
        For each number its name, its meaning in words (may be empty), which direction is better, and for each run the
        text to show (empty where it has none) and whether that is the best.
    """
    sent = {way: words for way, words in WAYS.items() if any(result.bytes[way] for result in results)}
    about = {metric.name: {"words": metric.words, "better": metric.better} for metric in METRICS}
    last = {f"bytes_{way}": {"words": f"sent {words}", "better": "lower"} for way, words in sent.items()}
    last["seconds"] = {"words": "of all rounds", "better": "neither"}
    numbers = [
        {**shown_metrics(result), **{f"bytes_{way}": result.bytes[way] for way in sent}, "seconds": result.seconds}
        for result in results
    ]
    names = {name for scores in numbers for name in scores}
    others = sorted(names - {*about, *last})
    lines = []
    for name in (*(name for name in about if name in names), *others, *last):
        said = {**about, **last}.get(name, {"words": "", "better": "neither"})
        values = [scores.get(name) for scores in numbers]
        texts = ["" if value is None else value_of(name, value) for value in values]
        best = best_of(values, said["better"] if comparable else "neither")
        lines.append({"name": name, **said, "cells": list(zip(texts, best, strict=True))})
    return lines


def best_of(values: Sequence[float | None], better: str) -> list[bool]:
    """Return which of some numbers are the best: none where no direction is better, or where all are equal.

    >>> best_of([0.5, None, 0.7], "higher"), best_of([1.0, 1.0], "lower")
    ([False, False, True], [False, False])
    """
    present = sorted(value for value in values if value is not None)
    if better == "neither" or present[-1] - present[0] < TOLERANCE:
        return [False] * len(values)
    best = present[-1 if better == "higher" else 0]
    return [value is not None and abs(value - best) < TOLERANCE for value in values]


def curves_of(tables: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """Return the curves over rounds, one a metric that figures show: its name, and a PNG in base64.

    Args:
        tables: of rounds, by the letter of the run.
    """
    drawn = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*(metric.name for metric in shown_in("figure")), "loss"):
            curves = {letter: table for letter, table in tables.items() if name in table and table[name].count()}
            if any(table[name].count() > 1 for table in curves.values()):
                path = compare_curves(curves, name, Path(scratch) / f"{name}.png")
                drawn.append((name, in_base64(path.read_bytes())))
    return drawn


def differences(columns: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Return the keys whose values differ, with their values; a missing value is empty.

    >>> differences([{"a": "1", "b": "2"}, {"a": "1"}])
    [('b', ['2', ''])]
    """
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, [column.get(key, "") for column in columns]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def report_of(folder: RunFolder) -> str:
    """Return the address of a run's report; empty where it has none."""
    path = (folder.path / REPORT).resolve()
    return path.as_uri() if path.exists() else ""
