"""Studies: one table or figure of a paper, ours beside the paper's, and its claims as checks.

A study is a YAML file in studies/: settings that all runs share, rows and columns that change them, metrics, the
paper's values and claims. Every cell is a number of runs with different seeds; a run that is already there with the
same settings is used again, one that was cut short is resumed.
"""

from __future__ import annotations

import copy
import json
import operator
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from data.errors import ShoalError
from flows import places
from flows.launch import drive, find_like, new_run
from tasks.codec import write_atomic
from tasks.engine import Observer
from tasks.figures import compare_curves
from tasks.hardware import resolve_device, resolve_slots
from tasks.result import run_result
from tasks.runfolder import FINISHED, RunFolder
from tasks.settings import Settings, make_settings
from tasks.slots import Slots

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
    settings: Settings


def study_names() -> list[str]:
    """All studies."""
    return sorted(
        p.name.removesuffix(".yaml") for p in resources.files("studies").iterdir() if p.name.endswith(".yaml")
    )


def load_study(name: str) -> dict[str, Any]:
    """A study's file.

    Raises:
        StudyError: there is none of that name.
    """
    if name not in study_names():
        raise StudyError(f"no study {name!r}; there are {', '.join(study_names())}")
    return yaml.safe_load(resources.files("studies").joinpath(f"{name}.yaml").read_text())


def merge(base: dict[str, Any], *changes: dict[str, Any] | None) -> dict[str, Any]:
    """Nested dictionaries laid over one another; naming another method or scheme replaces its section."""
    result = copy.deepcopy(base)
    for change in changes:
        for key, value in (change or {}).items():
            old: Any = result.get(key)
            same = isinstance(old, dict) and isinstance(value, dict)
            tag = {"method": "name", "partition": "kind"}.get(key)
            if same and tag and tag in value and old.get(tag) != value[tag]:
                kept = {k: old[k] for k in ("clients", "validation") if k in old} if key == "partition" else {}
                result[key] = {**kept, **value}
            else:
                result[key] = merge(old, value) if same else copy.deepcopy(value)
    return result


def cells(study: dict[str, Any], scale: str, seeds: int | None) -> list[Cell]:
    """Every run of a study at one scale.

    A scale may say of a row `skip`, or change its settings, or name the `columns` it is run in.

    Raises:
        StudyError: the study has no such scale.
    """
    if scale not in study["scales"]:
        raise StudyError(f"study {study['name']!r} has no scale {scale!r}; it has {', '.join(study['scales'])}")
    chosen = study["scales"][scale]
    count = seeds or chosen.get("seeds", 3)
    found = []
    for column, column_change in chosen.get("columns", study["columns"]).items():
        for row, row_change in study["rows"].items():
            own = chosen.get("rows", {}).get(row, {})
            if own == "skip" or column not in own.get("columns", [column]):
                continue
            own = {key: value for key, value in own.items() if key != "columns"}
            raw = merge(study.get("settings", {}), chosen.get("settings"), column_change, row_change, own)
            found += [Cell(row, column, s, make_settings(merge(raw, {"seed": s}))) for s in range(count)]
    return found


def run_study(
    name: str,
    scale: str,
    seeds: int | None = None,
    overrides: dict[str, Any] | None = None,
    watch: Callable[[str, RunFolder | None], Observer | None] | None = None,
) -> dict[str, Any]:
    """Run what is missing of a study, and put its table together.

    Args:
        name: of the study.
        scale: cpu or paper.
        seeds: runs a cell; by default what the study says.
        overrides: settings laid over every run (workers, tracking).
        watch: given a label and a run, an observer of that run.

    Returns:
        study, scale, rows (row, column, metric, mean, std, seeds, paper), claims (claim, holds, value), runs, files.
    """
    study = load_study(name)
    planned = cells(study, scale, seeds)
    if overrides:
        planned = [Cell(c.row, c.column, c.seed, make_settings(merge(c.settings.plain(), overrides))) for c in planned]
    first = planned[0].settings
    device = resolve_device(first.workers.device)
    runs: list[tuple[Cell, RunFolder]] = []
    with Slots(resolve_slots(first.workers.slots, device), device) as slots:
        for number, cell in enumerate(planned, 1):
            run = find_like(cell.settings) or new_run(cell.settings)
            if run.status()["state"] != FINISHED:
                label = f"[{number}/{len(planned)}] {cell.row}, {cell.column}, seed {cell.seed}"
                observer = watch(label, run) if watch else None
                drive(run, slots=slots, observers=[observer] if observer else [])
            runs.append((cell, run))
    return report_study(study, scale, runs)


def report_study(study: dict[str, Any], scale: str, runs: list[tuple[Cell, RunFolder]]) -> dict[str, Any]:
    """The table, claims and figure of a study from its runs; also written to results/studies/."""
    factor = 100.0 if study.get("percent", True) else 1.0
    paper = study.get("paper_values", {})
    groups: dict[tuple[str, str], list[RunFolder]] = {}
    for cell, run in runs:
        groups.setdefault((cell.row, cell.column), []).append(run)
    rows = []
    for (row, column), found in groups.items():
        results = [run_result(run) for run in found]
        for metric in study["metrics"]:
            values = [r["metrics"][metric] * factor for r in results if metric in r["metrics"]]
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
    result = {
        "study": study["name"],
        "scale": scale,
        "about": study["scales"][scale].get("about", ""),
        "rows": rows,
        "claims": [check(claim, rows) for claim in study.get("claims", [])],
        "runs": [run.name for _, run in runs],
    }
    folder = places.home() / "results" / "studies" / f"{study['name']}-{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    result["folder"] = str(folder)
    write_atomic(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    for column in {column for _, column in groups}:
        tables = {
            row: mean_curve(found, study.get("curve", "acc")) for (row, at), found in groups.items() if at == column
        }
        drawn = {row: table for row, table in tables.items() if len(table) > 1}
        if drawn:
            stem = "".join(c if c.isalnum() else "-" for c in column.lower())
            compare_curves(drawn, study.get("curve", "acc"), folder / f"{stem}.png")
    return result


def mean_curve(runs: list[RunFolder], metric: str) -> pd.DataFrame:
    """A metric over rounds, the mean over runs: columns round and the metric."""
    tables = [run.table("rounds") for run in runs]
    together = pd.concat([t[["round", metric]] for t in tables if metric in t] or [pd.DataFrame()])
    return together.groupby("round", as_index=False).mean() if len(together) else together


def check(claim: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A claim `left op right (+ margin)` on the means; left and right are [row, column, metric] or a number."""

    def value(side: Any) -> float | None:
        if not isinstance(side, list):
            return float(side)
        return next((r["mean"] for r in rows if [r["row"], r["column"], r["metric"]] == side), None)

    left, right = value(claim["left"]), value(claim["right"])
    if left is None or right is None:
        return {"claim": claim["claim"], "holds": False, "value": None, "note": "not measured at this scale"}
    holds = OPERATORS[claim.get("op", ">")](left, right + claim.get("margin", 0.0))
    return {"claim": claim["claim"], "holds": holds, "value": left - right}


def study_folder(name: str, scale: str) -> Path:
    """Where a study's table and figures are."""
    return places.home() / "results" / "studies" / f"{name}-{scale}"
