"""Studies whose cells are computed here, without a federated run: a toy problem, or a batched simulation.

The metrics of a cell are kept under results/simulated/ by what they were computed from, and used again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.codec import write_atomic
from shoal.engine.store.lineage import Environment, GitState, here
from shoal.studies.cells import Cell
from shoal.studies.definition import Study, function
from shoal.studies.digests import decisive
from shoal.studies.provenance import Provenance, of_lineages
from shoal.studies.result import study_folder
from shoal.studies.rows import Draw, Measured

Simulate = Callable[[dict[str, Any], int, Path], dict[str, float]]
"""(settings, seed, folder for figures) to metrics by name."""


@dataclass(frozen=True)
class Simulation:
    """What one cell is computed from; it can be sent to another process.

    Attributes:
        study: whose function computes it.
        settings: what the function is given.
        seed: of its random draws.
        figures: the folder for figures of this cell.
        prepared: folders of the data sets that the study needs, by name.
        kept: the file that its metrics are kept in.
        environment: code and machine that compute it.
    """

    study: Study
    settings: dict[str, Any]
    seed: int
    figures: Path
    prepared: dict[str, str]
    kept: Path
    environment: Environment


def simulate_cells(
    study: Study,
    scale: str,
    planned: Sequence[Cell],
    overrides: dict[str, Any],
    prepared: dict[str, str],
    done: Callable[[str], object],
    *,
    gather: bool = False,
) -> tuple[list[Measured], Provenance]:
    """Compute what is missing of a study's cells, and draw its figures.

    Args:
        study: with the function `simulate`.
        scale: the scale that cells were planned at.
        planned: the cells.
        overrides: settings laid over those of every cell.
        prepared: folders of the data sets that the study needs, by name.
        done: told of each cell that was computed, by its number and label.
        gather: whether cells that are missing are left out instead.

    Returns:
        The metrics of each row in each column, and where they come from.
    """
    wanted = decisive(overrides)
    folder = study_folder(study.name, scale)
    store = places.home() / "results" / "simulated"
    store.mkdir(parents=True, exist_ok=True)
    environment = here()
    kept: list[Path] = []
    waiting: dict[Path, Simulation] = {}
    for cell in planned:
        settings = merge(cell.settings, wanted)
        identity = json.dumps([f"{study.system}.{study.simulate}", settings, cell.seed], sort_keys=True)
        kept.append(store / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json")
        if not kept[-1].exists():
            figures = folder / f"{cell.row.key}-{cell.column.key}-{cell.seed}"
            waiting[kept[-1]] = Simulation(study, settings, cell.seed, figures, prepared, kept[-1], environment)
    labels = {path: cell.label for path, cell in zip(kept, planned, strict=True)}
    for number, path in enumerate(simulate_all([] if gather else list(waiting.values())), 1):
        done(f"[{number}/{len(waiting)}] {labels[path]}")
    there = [(path, cell) for path, cell in zip(kept, planned, strict=True) if path.exists()]
    contents = {path: json.loads(path.read_text()) for path, _ in there}
    found: dict[tuple[str, str], Measured] = {}
    for path, cell in there:
        at = (cell.row.key, cell.column.key)
        earlier = found.get(at, Measured(cell.row, cell.column, ()))
        metrics = (*earlier.metrics, contents[path]["metrics"])
        found[at] = Measured(cell.row, cell.column, metrics, (*earlier.seeds, cell.seed))
    folder.mkdir(parents=True, exist_ok=True)
    for drawing in study.figures if found else ():
        draw: Draw = function(study, drawing)
        draw(list(found.values()), folder)
    return list(found.values()), origin(contents)


def origin(contents: Mapping[Path, dict[str, Any]]) -> Provenance:
    """Where the kept cells of these files come from; those of versions that did not say are of an unknown commit."""
    said = sorted((content["made"] for content in contents.values() if "made" in content), key=lambda made: made["at"])
    environments = [found for made in said if (found := read_environment(made["lineage"])) is not None]
    complete = len(environments) == len(contents)
    newest = max((path.stat().st_mtime for path in contents), default=0.0)
    if not complete:
        environments.insert(0, replace(here(), git=GitState(None, None, None)))
    return of_lineages(environments, newest, sum(made["seconds"] for made in said) if complete else None)


def read_environment(plain: Any) -> Environment | None:
    """What computed a kept cell; None where its file does not say it as this version does."""
    try:
        return record_from_json(Environment, plain)
    except BadRecord:
        return None


def simulate_all(waiting: Sequence[Simulation]) -> Iterator[Path]:
    """Compute cells, several at once where there are several cores; yields the file of each as it is done."""
    workers = min(len(waiting), os.cpu_count() or 1)
    if workers <= 1:
        for one in waiting:
            simulate_cell(one)
            yield one.kept
        return
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(simulate_cell, one): one.kept for one in waiting}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def simulate_cell(one: Simulation) -> None:
    """Compute one cell on one thread, and keep its metrics in a file."""
    assert one.study.simulate is not None
    compute: Simulate = function(one.study, one.study.simulate)
    one.figures.mkdir(parents=True, exist_ok=True)
    started = time.time()
    with one_thread():
        # Where the data lies is no part of what was computed.
        settings = {**one.settings, "prepared": one.prepared} if one.prepared else one.settings
        metrics = compute(settings, one.seed, one.figures)
    if not any(one.figures.iterdir()):
        one.figures.rmdir()
    ended = time.time()
    kept = {
        "of": [f"{one.study.system}.{one.study.simulate}", one.settings, one.seed],
        "metrics": metrics,
        "made": {"at": ended, "seconds": ended - started, "lineage": record_to_json(one.environment)},
    }
    write_atomic(one.kept, (json.dumps(kept) + "\n").encode())
