"""Run a study: plan its cells, measure those that were not, derive numbers and figures, and judge its claims.

A cell that was measured, here or in the kept results, is not measured again unless that is asked for. A run that was
cut short is resumed.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.lineage import current_environment
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.starting import find_like, new_run, runs_like
from shoal.review.pages.figures import compare_curves
from shoal.review.results.result import run_result
from shoal.sweeps.sweep import RunFailed, Watch, open_sweep, without_registration
from shoal_research.cells import Cell, cells
from shoal_research.claims import JudgedClaim, judge
from shoal_research.definition import Study, StudyError, function, load_study, studies_of
from shoal_research.figures import rounds_of
from shoal_research.kept import (
    CELLS,
    CHANGED,
    MeasuredCell,
    MeasuredCells,
    commit_of,
    load_kept,
    load_measured,
    measurement,
    study_folder,
    write_cells,
)
from shoal_research.table import Derive, Group, Table

NOT_DECISIVE = ("tracking", "workers", "checkpoint")
"""Settings of where a run is executed and logged, which change no number."""


def print_label(label: str, run: RunFolder) -> None:
    """Print what is measured, where nobody watches; standard output may be for JSON alone."""
    print(label, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class StudyResult:
    """A study at a scale: its table, its judged claims, the failed runs in words, and the folder of figures."""

    study: Study
    scale: str
    table: Table
    claims: Sequence[JudgedClaim]
    failed: Sequence[str]
    folder: Path


def run_study(
    name: str,
    scale: str,
    seeds: int | None = None,
    overrides: dict[str, Any] | None = None,
    watch: Watch | None = None,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    gather: bool = False,
    again: bool = False,
    processes: int = 1,
) -> StudyResult:
    """Measure the missing cells of a study, and make its table.

    Args:
        name: of the study.
        scale: cpu, large or paper.
        seeds: runs a cell; by default those of the study.
        overrides: settings that replace those of every run. Cells with other numbers than the study's are not kept, and
            nothing kept is shown beside them.
        watch: makes the observer of a run.
        rows, columns: keys or captions of the ones to compute; by default all.
        gather: measure nothing, and make the table from what was measured.
        again: measure cells at the present commit that an earlier one has measured.
        processes: that do runs side by side.

    Raises:
        StudyError: the study, its scale, a row or a column is unknown; the study's file is wrong; an earlier commit
            has the code of missing cells; or nothing was measured that could be gathered.
    """
    study = load_study(name)
    overrides = overrides or {}
    watch = watch or print_label
    planned = cells(study, scale, seeds, rows, columns)
    here, known = measured_before(name, scale, overrides)
    commit = commit_of(current_environment().shoal.git)
    missing = [] if gather else [cell for cell in planned if is_missing(cell, known, commit, again=again)]
    if study.code_at:
        planned = []
        if missing:
            raise StudyError(
                f"study {name!r} is over: its cells are kept, and others need earlier code: {study.command(scale)}"
            )
    folder = study_folder(name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    if missing and study.add_data:
        function(study, study.add_data)(data_of(missing, overrides))
    failed = execute(missing, overrides, watch, again=again, processes=processes)
    new = gathered(study, scale, planned, overrides)
    everything = known.with_cells(new)
    if not everything.cells:
        raise StudyError(
            "; ".join(failed) or f"no cell of study {name!r} at scale {scale!r} was measured: {study.command(scale)}"
        )
    if not changes_numbers(overrides):
        write_cells(folder / CELLS, here.with_cells(new))
    return StudyResult(study, scale, everything.table(), judged(study, scale, everything), failed, folder)


def changes_numbers(overrides: Mapping[str, Any]) -> bool:
    """Return whether settings that are laid over all runs make other numbers than the study's."""
    return any(key not in NOT_DECISIVE for key in overrides)


def measured_before(name: str, scale: str, overrides: Mapping[str, Any]) -> tuple[MeasuredCells, MeasuredCells]:
    """Return the cells that this home has measured, and these with the kept ones; none with other numbers."""
    if changes_numbers(overrides):
        return MeasuredCells(name, scale), MeasuredCells(name, scale)
    here = load_measured(name, scale)
    return here, load_kept(name, scale).with_cells(here)


def is_missing(cell: Cell, known: MeasuredCells, commit: str, *, again: bool) -> bool:
    """Return whether a cell is to be measured; `again` counts measurements of the present, committed code alone."""
    there = known.newest().get(cell.place)
    return there is None or (again and (there.commit != commit or commit.endswith(CHANGED)))


def judged(study: Study, scale: str, cells: MeasuredCells) -> list[JudgedClaim]:
    """Return a study's claims at a scale, judged among those of its page, given its cells; of others the kept ones."""

    def table(other: Study, at: str) -> Table:
        if other.name != study.name:
            return load_kept(other.name, at).table()
        return cells.table() if at == scale else {}

    return [one for one in judge(studies_of(study.page), table) if (one.study.name, one.scale) == (study.name, scale)]


def in_unit(study: Study, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics in the unit of the study; an infinite one (an epsilon without noise) has no mean."""
    factor = 100.0 if study.percent else 1.0
    return {
        name: value * factor if name in study.metrics else value
        for name, value in metrics.items()
        if math.isfinite(value)
    }


def derive(study: Study, groups: Sequence[Group], folder: Path) -> Table:
    """Return what the functions of a study derive from all its groups, and draw their figures."""
    table: Table = {}
    for path in study.derive if groups else ():
        compute: Derive = function(study, path)
        table |= compute(study, groups, folder)
    return table


def execute(
    missing: Sequence[Cell], overrides: dict[str, Any], watch: Watch, *, again: bool, processes: int
) -> list[str]:
    """Complete the runs of missing cells, and return in words which of them failed: these cells get no numbers.

    Args:
        missing: the cells.
        overrides, watch, again, processes: as of `run_study`.
    """
    planned = [(f"[{number}/{len(missing)}] {cell.label}", cell) for number, cell in enumerate(missing, 1)]
    if processes == 1:
        return complete_all(planned, overrides, again, watch)
    shares = [planned[first::processes] for first in range(processes)]
    same = itertools.repeat
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        return [words for failed in pool.map(complete_all, shares, same(overrides), same(again)) for words in failed]


def complete_all(
    planned: Sequence[tuple[str, Cell]], overrides: Mapping[str, Any], again: bool, watch: Watch = print_label
) -> list[str]:
    """Complete the runs of cells, each with its label, on the same workers; return in words which failed."""
    failed: list[str] = []
    if not planned:
        return failed
    with open_sweep(settings_of(planned[0][1], overrides), watch) as sweep:
        for label, cell in planned:
            settings = settings_of(cell, overrides)
            run = find_like(settings)
            if again:
                run = find_again(settings)
            run = run or new_run(settings)
            try:
                sweep.complete(run, label)
            except RunFailed:
                failed.append(f"{cell.label}: {run.status().message}")
    return failed


def settings_of(cell: Cell, overrides: Mapping[str, Any]) -> Settings:
    """Return the settings of the run of a cell."""
    return make_settings(merge(cell.settings, {"seed": cell.seed}, without_registration(overrides)))


def data_of(planned: Sequence[Cell], overrides: Mapping[str, Any]) -> list[str]:
    """Return the names of the data sets of cells, each once."""
    return list(dict.fromkeys(settings_of(cell, overrides).data.name for cell in planned))


def find_again(settings: Settings) -> RunFolder | None:
    """Return the newest run with these settings, if it can be resumed or has the present, committed code."""
    run = next(runs_like(settings), None)
    if run is None or not run.is_finished():
        return run
    commit = commit_of(current_environment().shoal.git)
    same = commit_of(run.lineage().shoal.git) == commit and not commit.endswith(CHANGED)
    return run if same else None


def gathered(study: Study, scale: str, planned: Sequence[Cell], overrides: dict[str, Any]) -> MeasuredCells:
    """Return the cells of all finished runs of this home, with derived numbers, and draw the study's figures."""
    folder = study_folder(study.name, scale)
    places: dict[tuple[str, str], dict[int, RunFolder]] = {}
    for cell in planned:
        run = find_like(settings_of(cell, overrides))
        if run is not None and run.is_finished():
            places.setdefault((cell.row.key, cell.column.key), {})[cell.seed] = run
    groups = [Group(study.rows[row], study.columns_at(scale)[column], runs) for (row, column), runs in places.items()]
    table = derive(study, groups, folder)
    draw_curves(study, groups, folder)
    new = MeasuredCells(study.name, scale)
    for group in groups:
        for seed, run in group.runs.items():
            made = measurement(run.lineage(), day(run.status().updated or 0.0))
            further = {
                metric: values[seed]
                for (row, column, metric), values in table.items()
                if (row, column) == group.keys and seed in values
            }
            one = MeasuredCell(*group.keys, seed, made.commit, {**run_numbers(study, run), **further}, run=run.name)
            new = new.with_cells(MeasuredCells(study.name, scale, (made,), (one,)))
    return new


def run_numbers(study: Study, run: RunFolder) -> dict[str, float]:
    """Return the study's metrics of a run's last evaluated round, some of them beside null baselines."""
    result = run_result(run)
    numbers = {**result.quality, **result.metrics}
    return in_unit(study, {name: numbers[name] for name in study.metrics if name in numbers})


def day(seconds: float) -> str:
    """Return the date of a time in seconds since 1970 as YYYY-MM-DD."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def draw_curves(study: Study, groups: Sequence[Group], folder: Path) -> None:
    """Draw the mean of the study's curve over rounds: a figure a column, with a line a row that has several rounds."""
    curves: dict[str, dict[str, pd.DataFrame]] = {}
    for group in groups:
        rounds = rounds_of([run.table("rounds") for run in group.runs.values()], study.curve)
        curve = rounds.groupby("round", as_index=False).mean()
        if len(curve) > 1:
            curves.setdefault(group.column.key, {})[group.row.caption] = curve
    for column, drawn in curves.items():
        compare_curves(drawn, study.curve, folder / f"{column}.png")
