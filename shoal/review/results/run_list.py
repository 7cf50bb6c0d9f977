"""The list of all runs: a line a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from shoal.engine.store.run_folder import RunFolder
from shoal.engine.store.run_order import in_order
from shoal.review.results.listed_run import ListedRun
from shoal.review.results.runs import list_run


def listed_runs(
    runs: Path,
    *,
    method: str | None = None,
    data: str | None = None,
    states: Sequence[str] = (),
    last: int | None = None,
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first.

    Args:
        runs: the folder.
        method, data: only runs of these.
        states: only runs in one of these states.
        last: only so many; older runs are not read.
    """
    lines = (list_run(RunFolder(path.parent)) for path in reversed(in_order(runs)))
    matching = (
        run
        for run in lines
        if (method is None or run.method == method)
        and (data is None or run.data == data)
        and (not states or run.state in states)
    )
    return list(islice(matching, last))
