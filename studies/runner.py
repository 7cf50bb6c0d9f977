"""Studies: one table or figure of a paper, ours beside the paper's, and its claims as checks.

A study is a YAML file in the folder of its system: settings that all runs share, rows and columns that change them,
metrics, the paper's values and claims. Every cell is a number of runs with different seeds; a run that is already there
with the same settings is used again, one that was cut short is resumed.

Two keys name functions beside the file, as `module:name`: `simulate` computes a cell without a federated run (a toy
problem, a batched simulation), and `derive` adds rows and figures that need all runs at once. Of a study that is
simulated, `figures` names functions that draw from the metrics of all cells, and `needs` data sets that the function is
given, as `settings["prepared"]`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import multiprocessing
import operator
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from core.errors import ShoalError
from engine import places
from engine.codec import write_atomic
from engine.hardware import resolve_device
from engine.merge import merge
from engine.one_thread import one_thread
from engine.pools import open_pool
from engine.rounds import Observer
from engine.run_folder import FINISHED, RunFolder
from engine.settings import Settings, make_settings
from review.figures import compare_curves
from review.progress import prepare_shown
from review.result import run_result
from tasks.driving import drive
from tasks.starting import find_like, new_run

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class StudyError(ShoalError):
    """A study is unknown, or its file is wrong."""


@dataclass(frozen=True)
class Cell:
    """One cell of a study with one seed."""

    row: str
    column: str
    seed: int
    settings: Settings | dict[str, Any]
    """What the run is started with; of a study that is simulated, the plain settings."""


Groups = dict[tuple[str, str], list[RunFolder]]
"""The finished runs of each (row, column)."""
Simulate = Callable[[dict[str, Any], int, Path], dict[str, float]]
"""(settings, seed, folder for figures) to metrics by name."""
Derive = Callable[[dict[str, Any], Groups, Path], list[dict[str, Any]]]
"""(study, runs, folder for figures) to further rows: row, column, metric, mean, std, seeds."""


def function(path: str) -> Callable[..., Any]:
    """A function of a system's studies, by `system.module:name`.

    Raises:
        StudyError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(f"studies.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise StudyError(f"a study names studies.{path}, which cannot be imported: {error}") from error


def study_names() -> list[str]:
    """All studies."""
    return sorted(_files())


def _files() -> dict[str, tuple[str, Any]]:
    """The system and the file of each study, by name."""
    return {
        file.name.removesuffix(".yaml"): (folder.name, file)
        for folder in resources.files("studies").iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


def load_study(name: str) -> dict[str, Any]:
    """A study's file.

    Raises:
        StudyError: there is none of that name.
    """
    files = _files()
    if name not in files:
        raise StudyError(f"no study {name!r}; there are {', '.join(sorted(files))}")
    system, file = files[name]
    study = yaml.safe_load(file.read_text())
    for key in ("derive", "figures"):
        if key in study:
            study[key] = [f"{system}.{path}" for path in study[key]]
    if "simulate" in study:
        study["simulate"] = f"{system}.{study['simulate']}"
    return study


def cells(
    study: dict[str, Any], scale: str, seeds: int | None, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Cell]:
    """Every run of a study at one scale; where rows or columns are named, of these alone.

    A scale may say of a row `skip`, or change its settings, or name the `columns` it is run in.

    Raises:
        StudyError: the study has no such scale, row or column.
    """
    if scale not in study["scales"]:
        raise StudyError(f"study {study['name']!r} has no scale {scale!r}; it has {', '.join(study['scales'])}")
    chosen = study["scales"][scale]
    count = seeds or chosen.get("seeds", 3)
    all_columns = chosen.get("columns", study["columns"])
    for what, named, there in (("row", rows, study["rows"]), ("column", columns, all_columns)):
        if unknown := [name for name in named if name not in there]:
            raise StudyError(f"study {study['name']!r} has no {what} {unknown[0]!r}; it has {'; '.join(there)}")
    found = []
    for column, column_change in all_columns.items():
        for row, row_change in study["rows"].items():
            if (rows and row not in rows) or (columns and column not in columns):
                continue
            own = chosen.get("rows", {}).get(row, {})
            if own == "skip" or column not in own.get("columns", [column]):
                continue
            own = {key: value for key, value in own.items() if key != "columns"}
            raw = merge(study.get("settings", {}), chosen.get("settings"), row_change, column_change, own)
            for seed in range(count):
                settings = raw if "simulate" in study else make_settings(merge(raw, {"seed": seed}))
                found.append(Cell(row, column, seed, settings))
    return found


def run_study(
    name: str,
    scale: str,
    seeds: int | None = None,
    overrides: dict[str, Any] | None = None,
    watch: Callable[[str, RunFolder | None], Observer | None] | None = None,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> dict[str, Any]:
    """Run what is missing of a study, and put its table together.

    Args:
        name: of the study.
        scale: cpu or paper.
        seeds: runs a cell; by default what the study says.
        overrides: settings laid over every run (workers, tracking).
        watch: given a label and a run, an observer of that run.
        rows, columns: those to compute; none named: all.

    Returns:
        study, scale, rows (row, column, metric, mean, std, seeds, paper), claims (claim, holds, value), runs, files.
    """
    study = load_study(name)
    planned = cells(study, scale, seeds, rows, columns)
    if "simulate" in study:
        return simulate_study(study, scale, planned, overrides, watch)
    # A study compares: its models are logged, but none of them is a new version of anything.
    laid_over = merge({"tracking": {"register_as": "none"}}, overrides or {})
    settings = [
        make_settings(merge(c.settings.plain(), laid_over)) for c in planned if isinstance(c.settings, Settings)
    ]
    prepare_needs(study)
    device = resolve_device(settings[0].workers.device)
    runs: list[tuple[Cell, RunFolder]] = []
    with open_pool(settings[0].workers, device) as slots:
        for number, (cell, wanted) in enumerate(zip(planned, settings, strict=True), 1):
            run = find_like(wanted) or new_run(wanted)
            if run.status()["state"] != FINISHED:
                label = f"[{number}/{len(planned)}] {cell.row}, {cell.column}, seed {cell.seed}"
                observer = watch(label, run) if watch else None
                drive(run, slots=slots, observers=[observer] if observer else [])
            runs.append((cell, run))
    return report_study(study, scale, runs)


def prepare_needs(study: dict[str, Any]) -> dict[str, str]:
    """Prepare the data sets that a study names under `needs`: the folder of each."""
    return {needed: str(prepare_shown(needed).folder) for needed in study.get("needs", [])}


def simulate_study(
    study: dict[str, Any],
    scale: str,
    planned: list[Cell],
    overrides: dict[str, Any] | None,
    watch: Callable[[str, RunFolder | None], Observer | None] | None,
) -> dict[str, Any]:
    """A study whose cells are computed here: each cell's metrics are kept under results/simulated/ and used again."""
    function(study["simulate"])  # refuse a wrong name before any work
    prepared = prepare_needs(study)
    # Where runs are dispatched and tracked is nothing to a cell that is computed here.
    wanted = {key: value for key, value in (overrides or {}).items() if key not in ("tracking", "workers")}
    folder = study_folder(study["name"], scale)
    store = places.home() / "results" / "simulated"
    store.mkdir(parents=True, exist_ok=True)
    kept: list[Path] = []
    waiting: dict[Path, Simulation] = {}
    for cell in planned:
        assert isinstance(cell.settings, dict)
        settings = merge(cell.settings, wanted)
        identity = json.dumps([study["simulate"], settings, cell.seed], sort_keys=True)
        kept.append(store / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json")
        if not kept[-1].exists():
            figures = folder / f"{_stem(cell.row)}-{_stem(cell.column)}-{cell.seed}"
            waiting[kept[-1]] = (study["simulate"], settings, cell.seed, figures, prepared)
    labels = {path: f"{c.row}, {c.column}, seed {c.seed}" for path, c in zip(kept, planned, strict=True)}
    for number, path in enumerate(simulate_all(waiting), 1):
        if watch:
            watch(f"[{number}/{len(waiting)}] {labels[path]}", None)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for path, cell in zip(kept, planned, strict=True):
        found.setdefault((cell.row, cell.column), []).append(json.loads(path.read_text())["metrics"])
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in study.get("figures", []):
        function(drawing)(found, folder)
    return write_study(study, scale, table_rows(study, found))


Simulation = tuple[str, dict[str, Any], int, Path, dict[str, str]]
"""What a cell is computed from: function, settings, seed, folder of its figures, folders of prepared sets."""


def simulate_all(waiting: dict[Path, Simulation]) -> Iterator[Path]:
    """Compute cells, several at once where there are several cores; yields the file of each as it is done."""
    workers = min(len(waiting), os.cpu_count() or 1)
    if workers <= 1:
        for path, arguments in waiting.items():
            simulate_cell(path, *arguments)
            yield path
        return
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(simulate_cell, path, *arguments): path for path, arguments in waiting.items()}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def simulate_cell(
    path: Path, name: str, settings: dict[str, Any], seed: int, figures: Path, prepared: dict[str, str]
) -> None:
    """Compute one cell on one thread and keep its metrics in a file."""
    compute: Simulate = function(name)
    figures.mkdir(parents=True, exist_ok=True)
    with one_thread():
        # Where the data lies is no part of what was computed.
        metrics = compute({**settings, "prepared": prepared} if prepared else settings, seed, figures)
    if not any(figures.iterdir()):
        figures.rmdir()
    kept = {"of": [name, settings, seed], "metrics": metrics}
    write_atomic(path, (json.dumps(kept) + "\n").encode())


def report_study(study: dict[str, Any], scale: str, runs: list[tuple[Cell, RunFolder]]) -> dict[str, Any]:
    """The table, claims and figures of a study from its runs; also written to results/studies/."""
    groups: Groups = {}
    for cell, run in runs:
        groups.setdefault((cell.row, cell.column), []).append(run)
    found = {key: [run_result(run).metrics for run in members] for key, members in groups.items()}
    rows = table_rows(study, found)
    folder = study_folder(study["name"], scale)
    folder.mkdir(parents=True, exist_ok=True)
    paper = study.get("paper_values", {})
    for path in study.get("derive", []):
        for row in function(path)(study, groups, folder):
            published = paper.get(row["row"], {}).get(row["column"], {}).get(row["metric"])
            rows.append({**row, "paper": published})
    curve = study.get("curve", "acc")
    for column in {column for _, column in groups}:
        tables = {row: mean_curve(members, curve) for (row, at), members in groups.items() if at == column}
        drawn = {row: table for row, table in tables.items() if len(table) > 1}
        if drawn:
            compare_curves(drawn, curve, folder / f"{_stem(column)}.png")
    return write_study(study, scale, rows, [run.name for _, run in runs])


def table_rows(study: dict[str, Any], found: dict[tuple[str, str], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of each (row, column) and metric, beside the paper's value."""
    factor = 100.0 if study.get("percent", True) else 1.0
    paper = study.get("paper_values", {})
    rows = []
    for (row, column), results in found.items():
        for metric in study["metrics"]:
            values = [metrics[metric] * factor for metrics in results if metric in metrics]
            if values:
                rows.append(
                    {
                        "row": row,
                        "column": column,
                        "metric": metric,
                        "mean": statistics.fmean(values),
                        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
                        "seeds": len(values),
                        "paper": paper.get(row, {}).get(column, {}).get(metric),
                    }
                )
    return rows


def write_study(
    study: dict[str, Any], scale: str, rows: list[dict[str, Any]], runs: list[str] | None = None
) -> dict[str, Any]:
    """Check the claims and write the result beside its figures."""
    folder = study_folder(study["name"], scale)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "study": study["name"],
        "scale": scale,
        "about": study["scales"][scale].get("about", ""),
        "percent": study.get("percent", True),
        "rows": rows,
        "claims": [check(claim, rows) for claim in study.get("claims", [])],
        "runs": runs or [],
        "folder": str(folder),
    }
    write_atomic(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    return result


def _stem(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


def mean_curve(runs: list[RunFolder], metric: str) -> pd.DataFrame:
    """A metric over rounds, the mean over runs: columns round and the metric."""
    tables = [run.table("rounds") for run in runs]
    together = pd.concat([t[["round", metric]] for t in tables if metric in t] or [pd.DataFrame()])
    return together.groupby("round", as_index=False).mean() if len(together) else together


def check(claim: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A claim `left op right (+ margin)` on the means; left and right are [row, column, metric] or a number.

    `holds` and `value`, left less right, are None where a side was not measured.
    """

    def value(side: Any) -> float | None:
        if not isinstance(side, list):
            return float(side)
        return next((r["mean"] for r in rows if [r["row"], r["column"], r["metric"]] == side), None)

    left, right = value(claim["left"]), value(claim["right"])
    if left is None or right is None:
        return {"claim": claim["claim"], "holds": None, "value": None}
    holds = OPERATORS[claim.get("op", ">")](left, right + claim.get("margin", 0.0))
    return {"claim": claim["claim"], "holds": holds, "value": left - right}


def study_folder(name: str, scale: str) -> Path:
    """Where a study's table and figures are."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"
