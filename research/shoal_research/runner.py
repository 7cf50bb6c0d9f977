"""Run a study: plan its cells, execute the runs that are missing, and make its table, claims and figures.

Each cell has runs with different seeds. A finished run with the same settings is used again, and a run that was cut
short is resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_events import Observer
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.status import FAILED
from shoal.lifecycle.progress import prepare_with_bar
from shoal.lifecycle.starting import find_like, new_run
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.pages.figures import compare_curves
from shoal.review.results.result import run_result
from shoal.sweeps.sweep import RunFailed, open_sweep, parent_run, without_registration
from shoal_research.cells import Cell, cells
from shoal_research.definition import STAGED, Study, StudyError, function, load_study
from shoal_research.digests import decisive
from shoal_research.judging import Verdict
from shoal_research.provenance import from_runs
from shoal_research.regime import controls_of
from shoal_research.report import write_study_page
from shoal_research.result import CellRun, FailedRun, RunWords, StudyResult, study_folder, write_result
from shoal_research.rows import Derive, Group, Measured, measured_rows
from shoal_research.rule_stamp import stamp_rules, stamped_rules
from shoal_research.sequential import STAGES, next_stage
from shoal_research.side_by_side import complete_side_by_side
from shoal_research.simulation import plan, simulate_cells
from shoal_research.tracking import log_result

RunOfCell = tuple[Cell, RunFolder]
"""A cell with one seed, and its run."""
Watch = Callable[[str, RunFolder | None], Observer | None]
"""Makes the observer of a run, given a label and the run, or None in place of the run of a simulated cell."""


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
    processes: int = 1,
) -> StudyResult:
    """Execute the missing runs of a study, and make its table.

    Runs with the same settings are used again, so that a study with more seeds only runs the added ones.

    Args:
        name: of the study.
        scale: cpu or paper.
        seeds: runs a cell; by default those of the study, which adds the runs of a stage while a claim is not settled.
        overrides: settings that replace those of every run, such as workers and tracking.
        watch: makes the observer of a run.
        rows, columns: keys or captions of the ones to compute; by default all.
        gather: run nothing, and make the table from the runs that have ended.
        processes: that do runs side by side.

    Raises:
        StudyError: the study, its scale, a row or a column is unknown; the study's file is wrong; or no run has ended
            that could be gathered.
    """
    study = load_study(name)
    overrides = overrides or {}
    staged: dict[str, int] = {}
    if gather:
        staged = dict.fromkeys(cells_in_stages(study, scale), STAGES[-1])
    cells(study, scale, seeds, rows, columns)  # refuse wrong names before anything is written
    stamp_rules(study, scale, cells_with_runs(study, scale, overrides))
    while True:
        planned = cells(study, scale, seeds, rows, columns, staged)
        result = run_stage(study, scale, planned, overrides, watch, gather=gather, processes=processes)
        more = next_cells(study, scale, result, staged)
        if gather or seeds or more == staged:
            return result
        staged = more


def cells_with_runs(study: Study, scale: str, overrides: dict[str, Any]) -> set[str]:
    """Return the cells that have a run, whatever became of it, as `row/column`."""
    planned = cells(study, scale, None)
    if study.simulate:
        computed = plan(study, study_folder(study.name, scale), planned, decisive(overrides), {})
        return {f"{each.cell.row.key}/{each.cell.column.key}" for each in computed if each.file.exists()}
    settings = run_settings(planned, overrides)
    return {
        f"{cell.row.key}/{cell.column.key}"
        for cell, wanted in zip(planned, settings, strict=True)
        if find_like(wanted) is not None
    }


def cells_in_stages(study: Study, scale: str) -> list[str]:
    """Return the cells whose seeds come in stages, as `row/column`."""
    return [
        f"{row}/{column}"
        for row in study.rows
        for column in study.columns_at(scale)
        if study.runs_at(scale, row, column) and study.seeds_at(scale, row) == STAGED
    ]


def next_cells(study: Study, scale: str, result: StudyResult, staged: dict[str, int]) -> dict[str, int]:
    """Return the runs of each cell in the next stage: more where a claim is not settled.

    Args:
        study, scale: of the result.
        result: after a stage.
        staged: the runs of each cell in that stage, by `row/column`.
    """
    found = dict(staged)
    in_stages = set(cells_in_stages(study, scale))
    for claim, checked in zip(study.claims_at(scale), result.claims, strict=True):
        following = next_stage(len(checked.of_seeds))
        if checked.settled or checked.verdict is Verdict.MISSING or following is None:
            continue
        controls = controls_of(study, claim)
        for quantity in (*claim.quantities(), *(each for control in controls for each in control.quantities())):
            cell = f"{quantity.row}/{quantity.column}"
            if cell in in_stages:
                found[cell] = max(found.get(cell, STAGES[0]), following)
    return found


def run_stage(
    study: Study,
    scale: str,
    planned: Sequence[Cell],
    overrides: dict[str, Any],
    watch: Watch | None,
    *,
    gather: bool,
    processes: int = 1,
) -> StudyResult:
    """Execute the missing runs of planned cells, and make the table; arguments as of `run_study`."""
    study = study.at(scale)
    for path in study.functions():
        function(study, path)  # refuse a wrong name before any work
    if study.add_data:
        function(study, study.add_data)(study, list(dict.fromkeys(cell.row.key for cell in planned)))
    prepared = {needed: str(prepare_with_bar(needed).folder) for needed in study.needs}
    if study.simulate:
        result = simulated_result(study, scale, planned, overrides, prepared, watch, gather=gather)
        write_study_page(study, result)
        return result
    settings = run_settings(planned, overrides)
    key = ("shoal.study", f"{study.name} {scale}")
    tags = {"shoal.scale": scale, "shoal.paper": study.paper}
    with parent_run(settings[0], key, f"study {study.name} at scale {scale}", tags) as parent:
        if gather:
            runs = ended_runs(study, scale, planned, settings)
            for _, run in runs:
                parent.adopt(run)
        else:
            runs = execute(planned, settings, watch, parent, processes)
        result = make_result(study, scale, runs, overrides)
        write_study_page(study, result)
    log_result(parent, study, result)
    return result


def simulated_result(
    study: Study,
    scale: str,
    planned: Sequence[Cell],
    overrides: dict[str, Any],
    prepared: dict[str, str],
    watch: Watch | None,
    *,
    gather: bool,
) -> StudyResult:
    """Compute the missing cells of a simulated study, and return its table; arguments as of `run_study`."""

    def report(label: str) -> None:
        if watch is not None:
            watch(label, None)

    measured, provenance = simulate_cells(study, scale, planned, overrides, prepared, report, gather=gather)
    if not measured:
        raise nothing_ended(study.name, scale)
    rules = stamped_rules(study, scale)
    return write_result(study, scale, measured_rows(study, measured), provenance, overrides, rules)


def nothing_ended(name: str, scale: str) -> StudyError:
    """Return the error of gathering nothing: an empty result would replace one that has numbers."""
    return StudyError(
        f"no run of study {name!r} at scale {scale!r} with these settings has ended under {places.home()}: "
        f"shoal study {name} --scale {scale}"
    )


def execute(
    planned: Sequence[Cell], settings: Sequence[Settings], watch: Watch | None, parent: ParentRun, processes: int = 1
) -> list[RunOfCell]:
    """Return the runs of planned cells, completed on the same workers; a run that fails leaves its cell without number.

    Args:
        planned: the cells.
        settings: of the run of each cell.
        watch: makes the observer of a run.
        parent: the run in MLflow that the runs are nested under.
        processes: that do runs side by side; what they leave undone is done here.
    """
    found: list[RunOfCell] = []
    if processes > 1:
        runs = [find_like(wanted) or new_run(wanted) for wanted in settings]
        complete_side_by_side([(cell.label, run) for cell, run in zip(planned, runs, strict=True)], processes)
    with open_sweep(settings[0], watch) as sweep:
        for number, (cell, wanted) in enumerate(zip(planned, settings, strict=True), 1):
            run = find_like(wanted) or new_run(wanted)
            parent.adopt(run)
            with contextlib.suppress(RunFailed):
                sweep.complete(run, f"[{number}/{len(planned)}] {cell.label}")
            found.append((cell, run))
    return found


def ended_runs(study: Study, scale: str, planned: Sequence[Cell], settings: Sequence[Settings]) -> list[RunOfCell]:
    """Return the runs of planned cells that are finished or failed.

    Raises:
        StudyError: there is none.
    """
    runs = zip(planned, map(find_like, settings), strict=True)
    ended = [(cell, run) for cell, run in runs if run is not None and (run.is_finished() or has_failed(run))]
    if not ended:
        raise nothing_ended(study.name, scale)
    return ended


def has_failed(run: RunFolder) -> bool:
    """Return whether a run failed by itself."""
    return run.status().state == FAILED


def run_settings(planned: Sequence[Cell], overrides: dict[str, Any]) -> list[Settings]:
    """Return the settings of the run of each cell."""
    return [make_settings(merge(cell.settings, without_registration(overrides))) for cell in planned]


def grouped(runs: Sequence[RunOfCell]) -> list[Group]:
    """Return the finished runs by row and column."""
    groups: dict[tuple[str, str], Group] = {}
    for cell, run in runs:
        if run.is_finished():
            place = (cell.row.key, cell.column.key)
            group = groups.get(place, Group(cell.row, cell.column, ()))
            groups[place] = replace(group, runs=(*group.runs, run))
    return list(groups.values())


def make_result(study: Study, scale: str, runs: Sequence[RunOfCell], overrides: dict[str, Any]) -> StudyResult:
    """Make the table, claims and figures of a study from its runs, and write them to results/studies/."""
    failed = [
        FailedRun(cell.row.key, cell.column.key, cell.seed, run.status().message)
        for cell, run in runs
        if has_failed(run)
    ]
    groups = grouped(runs)
    if failed and not groups:
        raise StudyError(f"study {study.name!r}: every run failed; {failed[0].message}")
    measured = [
        Measured(group.row, group.column, tuple(run_numbers(run) for run in group.runs), group.seeds)
        for group in groups
    ]
    rows = measured_rows(study, measured)
    folder = study_folder(study.name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    for path in study.derive if groups else ():
        derive: Derive = function(study, path)
        rows += derive(study, groups, folder)
    words: list[RunWords] = []
    if study.describe:
        words = function(study, study.describe)(study, groups)
    draw_curves(study, groups, folder)
    finished = [run for group in groups for run in group.runs]
    cells = [
        CellRun(group.row.key, group.column.key, seed, run.name)
        for group in groups
        for seed, run in zip(group.seeds, group.runs, strict=True)
    ]
    rules = stamped_rules(study, scale)
    return write_result(study, scale, rows, from_runs(finished), overrides, rules, cells, failed, words)


def run_numbers(run: RunFolder) -> dict[str, float]:
    """Return the metrics of a run's last evaluated round, and its numbers beside null baselines."""
    result = run_result(run)
    return {**result.quality, **result.metrics}


def draw_curves(study: Study, groups: Sequence[Group], folder: Path) -> None:
    """Draw the study's curve over rounds, one figure a column with a line a row, where there are several rounds."""
    for column in {group.column.key for group in groups}:
        curves = {
            group.row.caption: mean_curve(group.runs, study.curve) for group in groups if group.column.key == column
        }
        drawn = {caption: curve for caption, curve in curves.items() if len(curve) > 1}
        if drawn:
            compare_curves(drawn, study.curve, folder / f"{column}.png")


def mean_curve(runs: Sequence[RunFolder], metric: str) -> pd.DataFrame:
    """Return a metric over rounds, the mean over runs: columns round and the metric."""
    tables = [run.table("rounds") for run in runs]
    curves = [table[["round", metric]] for table in tables if metric in table]
    if curves:
        return pd.concat(curves).groupby("round", as_index=False).mean()
    return pd.DataFrame()
