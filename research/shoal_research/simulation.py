"""Studies whose cells are computed here, without a federated run: a toy problem, or a batched simulation."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from shoal.engine.settings.one_thread import one_thread
from shoal_research.cells import Cell
from shoal_research.definition import Study, function

Simulate = Callable[[dict[str, Any], int, Path], dict[str, float]]
"""(settings, seed, folder for figures) to metrics by name."""


def simulate_all(study: Study, cells: Sequence[Cell], folder: Path) -> Iterator[tuple[Cell, Mapping[str, float]]]:
    """Compute cells, several at once where there are several cores; yield each with its metrics as it is done."""
    workers = min(len(cells), os.cpu_count() or 1)
    if workers <= 1:
        for cell in cells:
            yield cell, simulate_cell(study, cell, folder)
        return
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(simulate_cell, study, cell, folder): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def simulate_cell(study: Study, cell: Cell, folder: Path) -> dict[str, float]:
    """Compute one cell on one thread; its figures go to a folder of their own."""
    compute: Simulate = function(study, study.simulate or "")
    figures = folder / f"{cell.row.key}-{cell.column.key}-{cell.seed}"
    figures.mkdir(parents=True, exist_ok=True)
    with one_thread():
        metrics = compute(cell.settings, cell.seed, figures)
    if not any(figures.iterdir()):
        figures.rmdir()
    return metrics
