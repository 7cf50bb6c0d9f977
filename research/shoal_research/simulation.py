"""Studies whose cells are computed here, without a federated run: a toy problem, or a batched simulation.

The metrics of each cell are stored under results/simulated/ by the settings they were computed with, and used again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.records import record_from_json, record_to_json
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.codec import read_json, write_atomic
from shoal.engine.store.lineage import Environment, current_environment
from shoal_research.cells import Cell
from shoal_research.definition import Study, StudyError, function
from shoal_research.digests import decisive, simulation_digest
from shoal_research.provenance import Provenance, from_lineages
from shoal_research.result import study_folder
from shoal_research.rows import Draw, Measured

Simulate = Callable[[dict[str, Any], int, Path], dict[str, float]]
"""(settings, seed, folder for figures) to metrics by name."""


@dataclass(frozen=True)
class Simulation:
    """A cell to compute, which can be sent to another process.

    Attributes:
        study: whose function computes it.
        cell: of the study, with its seed.
        settings: what the function receives.
        figures: the folder for figures of this cell.
        prepared: folders of the data sets that the study needs, by name.
        file: that stores its metrics.
        environment: code and machine that compute it.
    """

    study: Study
    cell: Cell
    settings: dict[str, Any]
    figures: Path
    prepared: dict[str, str]
    file: Path
    environment: Environment


def simulate_cells(
    study: Study,
    scale: str,
    planned: Sequence[Cell],
    overrides: dict[str, Any],
    prepared: dict[str, str],
    report: Callable[[str], object],
    *,
    gather: bool = False,
) -> tuple[list[Measured], Provenance]:
    """Compute the missing cells of a study, and draw its figures.

    Args:
        study: with the function `simulate`.
        scale: that the cells were planned at.
        planned: the cells.
        overrides: settings that replace those of every cell.
        prepared: folders of the data sets that the study needs, by name.
        report: called after each computed cell with its number and label.
        gather: compute nothing, and leave missing cells out.

    Returns:
        The metrics of each row in each column, and where they come from.
    """
    folder = study_folder(study.name, scale)
    folder.mkdir(parents=True, exist_ok=True)
    simulations = plan(study, folder, planned, decisive(overrides), prepared)
    if not gather:
        # Cells with the same settings and seed share a file.
        missing = list({each.file: each for each in simulations if not each.file.exists()}.values())
        for number, done in enumerate(simulate_all(missing), 1):
            report(f"[{number}/{len(missing)}] {done.cell.label}")
    contents = [(each.cell, read_cell(each.file)) for each in simulations if each.file.exists()]
    measured: dict[tuple[str, str], Measured] = {}
    for cell, content in contents:
        place = (cell.row.key, cell.column.key)
        earlier = measured.get(place, Measured(cell.row, cell.column, ()))
        metrics = (*earlier.metrics, content["metrics"])
        measured[place] = Measured(cell.row, cell.column, metrics, (*earlier.seeds, cell.seed))
    for path in study.figures if measured else ():
        draw: Draw = function(study, path)
        draw(list(measured.values()), folder)
    return list(measured.values()), provenance([content["made"] for _, content in contents])


def plan(
    study: Study, folder: Path, planned: Sequence[Cell], overrides: dict[str, Any], prepared: dict[str, str]
) -> list[Simulation]:
    """Return what each cell is computed from, and the file that stores its metrics."""
    store = places.home() / "results" / "simulated"
    store.mkdir(parents=True, exist_ok=True)
    environment = current_environment()
    simulations = []
    for cell in planned:
        settings = merge(cell.settings, overrides)
        figures = folder / f"{cell.row.key}-{cell.column.key}-{cell.seed}"
        file = store / f"{simulation_digest(study, settings, cell.seed)}.json"
        simulations.append(Simulation(study, cell, settings, figures, prepared, file, environment))
    return simulations


def read_cell(file: Path) -> dict[str, Any]:
    """Return what `simulate_cell` stored.

    Raises:
        StudyError: another version of Shoal wrote the file.
    """
    content: dict[str, Any] = read_json(file)
    if "made" not in content:
        raise StudyError(f"{file} does not say which code computed it: remove it, and run the study again")
    return content


def provenance(made: Sequence[dict[str, Any]]) -> Provenance:
    """Return where cells come from, given the time, seconds and lineage of each."""
    ordered = sorted(made, key=lambda each: each["at"])
    newest = max((each["at"] for each in made), default=0.0)
    environments = [record_from_json(Environment, each["lineage"]) for each in ordered]
    return from_lineages(environments, newest, sum(each["seconds"] for each in made))


def simulate_all(simulations: Sequence[Simulation]) -> Iterator[Simulation]:
    """Compute cells, several at once where there are several cores; yield each as it is done."""
    workers = min(len(simulations), os.cpu_count() or 1)
    if workers <= 1:
        for simulation in simulations:
            simulate_cell(simulation)
            yield simulation
        return
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(simulate_cell, simulation): simulation for simulation in simulations}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def simulate_cell(simulation: Simulation) -> None:
    """Compute one cell on one thread, and store its metrics."""
    study = simulation.study
    seed = simulation.cell.seed
    compute: Simulate = function(study, study.simulate or "")
    simulation.figures.mkdir(parents=True, exist_ok=True)
    started = time.time()
    with one_thread():
        # The folders of data sets are no part of the stored settings: they differ between machines.
        prepared = {}
        if simulation.prepared:
            prepared = {"prepared": simulation.prepared}
        metrics = compute({**simulation.settings, **prepared}, seed, simulation.figures)
    if not any(simulation.figures.iterdir()):
        simulation.figures.rmdir()
    ended = time.time()
    content = {
        "of": [f"{study.system}.{study.simulate}", simulation.settings, seed],
        "metrics": metrics,
        "made": {"at": ended, "seconds": ended - started, "lineage": record_to_json(simulation.environment)},
    }
    write_atomic(simulation.file, (json.dumps(content) + "\n").encode())
