"""Run a study: plan its cells, carry out the runs that are missing, and put its table, claims and figures together.

Every cell is a number of runs with different seeds; a run that is already there with the same settings is used again,
one that was cut short is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from shoal.engine.cluster.pools import open_pool
from shoal.engine.rounds.loop import Observer
from shoal.engine.rounds.outcomes import RoundFailed
from shoal.engine.settings import places
from shoal.engine.settings.hardware import resolve_device
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, make_settings
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import FAILED, FINISHED
from shoal.lifecycle.driving import drive
from shoal.lifecycle.progress import prepare_shown
from shoal.lifecycle.starting import find_like, new_run
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.pages.figures import compare_curves
from shoal.review.results.result import run_result
from shoal.studies.cells import Cell, cells
from shoal.studies.definition import Study, StudyError, function, load_study
from shoal.studies.provenance import of_runs
from shoal.studies.report import write_study_page
from shoal.studies.result import FailedRun, StudyResult, study_folder, write_result
from shoal.studies.rows import Derive, Group, Measured, measured_rows
from shoal.studies.simulation import simulate_cells
from shoal.studies.tracking import log_result, parent_of

Carried = tuple[Cell, RunFolder]
"""A cell with one seed, and its run."""
Watch = Callable[[str, RunFolder | None], Observer | None]
"""Given a label and a run, or None of a cell that is simulated: an observer of that run, where one is wanted."""


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
) -> StudyResult:
    """Run what is missing of a study, and put its table together.

    What is there with the same settings is used again, so that a study with more seeds runs the further ones alone.

    Args:
        name: of the study.
        scale: cpu or paper.
        seeds: runs a cell; by default what the study says.
        overrides: settings laid over every run (workers, tracking).
        watch: given a label and a run, an observer of that run.
        rows, columns: keys or captions of those to compute; none named: all.
        gather: run nothing, and put together what is finished.

    Raises:
        StudyError: the study, its scale, a row or a column is unknown, or its file is wrong; or nothing is there that
            could be gathered.
    """
    study = load_study(name)
    planned = cells(study, scale, seeds, rows, columns)
    study, laid_over = study.at(scale), overrides or {}
    for path in (*study.derive, *study.figures, *filter(None, [study.simulate])):
        function(study, path)  # refuse a wrong name before any work
    prepared = prepare_needs(study)
    if study.simulate:
        tell = (lambda label: watch(label, None)) if watch else (lambda label: None)
        measured, provenance = simulate_cells(study, scale, planned, laid_over, prepared, tell, gather=gather)
        if gather and not measured:
            raise nothing_there(name, scale)
        result = write_result(study, scale, measured_rows(study, measured), provenance, laid_over)
        write_study_page(study, result)
        return result
    ended = there(planned, laid_over) if gather else []
    if gather and not ended:
        raise nothing_there(name, scale)
    parent = parent_of(study, scale, settings_of(planned, laid_over))
    try:
        for _, run in ended:
            parent.adopt(run)
        runs = ended if gather else execute(planned, laid_over, watch, parent)
        result = report_study(study, scale, runs, laid_over)
        write_study_page(study, result)
    except BaseException:
        parent.stop()
        raise
    log_result(parent, study, result)
    return result


def nothing_there(name: str, scale: str) -> StudyError:
    """The error of gathering nothing, whose result would take the place of one that has numbers."""
    return StudyError(
        f"no run of study {name!r} at scale {scale!r} with these settings has ended under {places.home()}: "
        f"shoal study {name} --scale {scale}"
    )


def prepare_needs(study: Study) -> dict[str, str]:
    """Prepare the data sets that a study names under `needs`: the folder of each."""
    return {needed: str(prepare_shown(needed).folder) for needed in study.needs}


def execute(
    planned: Sequence[Cell], overrides: dict[str, Any], watch: Watch | None, parent: ParentRun
) -> list[Carried]:
    """The runs of planned cells: those that are there, and the rest run on one pool of workers.

    A run that fails by itself, since its training diverges for example, leaves the others to be run: it has no number.

    Args:
        planned: the cells.
        overrides: settings laid over every run.
        watch: given a label and a run, an observer of that run.
        parent: what the runs are nested under in MLflow.
    """
    settings = settings_of(planned, overrides)
    device = resolve_device(settings[0].workers)
    found: list[Carried] = []
    with open_pool(settings[0].workers, device) as pool:
        for number, (cell, wanted) in enumerate(zip(planned, settings, strict=True), 1):
            run = find_like(wanted) or new_run(wanted)
            parent.adopt(run)
            if run.status().state != FINISHED:
                observer = watch(f"[{number}/{len(planned)}] {cell.label}", run) if watch else None
                try:
                    drive(run, slots=pool, observers=[observer] if observer else [])
                except (RoundFailed, RunError):
                    if run.status().state != FAILED:
                        raise  # it could not begin
            found.append((cell, run))
    return found


def there(planned: Sequence[Cell], overrides: dict[str, Any]) -> list[Carried]:
    """The runs of planned cells that are there and have ended; arguments as of `execute`."""
    runs = zip(planned, map(find_like, settings_of(planned, overrides)), strict=True)
    return [(cell, run) for cell, run in runs if run is not None and run.status().state in (FINISHED, FAILED)]


def failed_runs(runs: Sequence[Carried]) -> list[FailedRun]:
    """Those that failed, and why."""
    found = []
    for cell, run in runs:
        status = run.status()
        if status.state == FAILED:
            found.append(FailedRun(cell.row.key, cell.column.key, cell.seed, status.message))
    return found


def settings_of(planned: Sequence[Cell], overrides: dict[str, Any]) -> list[Settings]:
    """The settings of the run of each cell."""
    # A study compares: its models are logged, but none of them is a new version of anything.
    laid_over = merge({"tracking": {"register_as": "none"}}, overrides)
    return [make_settings(merge(cell.settings, laid_over)) for cell in planned]


def grouped(runs: Iterable[tuple[Cell, RunFolder]]) -> list[Group]:
    """Runs by row and column."""
    groups: dict[tuple[str, str], Group] = {}
    for cell, run in runs:
        group = groups.setdefault((cell.row.key, cell.column.key), Group(cell.row, cell.column, ()))
        groups[cell.row.key, cell.column.key] = replace(group, runs=(*group.runs, run))
    return list(groups.values())


def report_study(study: Study, scale: str, carried: Sequence[Carried], overrides: dict[str, Any]) -> StudyResult:
    """The table, claims and figures of a study from its runs; also written to results/studies/."""
    failed = failed_runs(carried)
    groups = grouped((cell, run) for cell, run in carried if run.status().state == FINISHED)
    if failed and not groups:
        raise StudyError(f"study {study.name!r}: every run failed; {failed[0].message}")
    measured = [
        Measured(group.row, group.column, tuple(run_result(run).metrics for run in group.runs), group.seeds)
        for group in groups
    ]
    rows = measured_rows(study, measured)
    folder = study_folder(study.name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    for path in study.derive if groups else ():
        derive: Derive = function(study, path)
        rows += derive(study, groups, folder)
    for column in {group.column.key for group in groups}:
        curves = {
            group.row.caption: mean_curve(group.runs, study.curve) for group in groups if group.column.key == column
        }
        drawn = {caption: curve for caption, curve in curves.items() if len(curve) > 1}
        if drawn:
            compare_curves(drawn, study.curve, folder / f"{column}.png")
    runs = [run for group in groups for run in group.runs]
    return write_result(study, scale, rows, of_runs(runs), overrides, [run.name for run in runs], failed)


def mean_curve(runs: Sequence[RunFolder], metric: str) -> pd.DataFrame:
    """A metric over rounds, the mean over runs: columns round and the metric."""
    tables = [run.table("rounds") for run in runs]
    together = pd.concat([t[["round", metric]] for t in tables if metric in t] or [pd.DataFrame()])
    return together.groupby("round", as_index=False).mean() if len(together) else together
