"""The runs that are there, and some of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd

from shoal.api.opened import Run
from shoal.core.errors import ShoalError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunFolder
from shoal.review.results.result import run_result
from shoal.review.results.runs import ListedRun, check_different, listed_runs


def runs(
    *, method: str | None = None, data: str | None = None, state: str | Sequence[str] = (), last: int | None = None
) -> pd.DataFrame:
    """Return the runs that are there, the newest first: a row each, indexed by name.

    Args:
        method, data: only runs of these.
        state: only running, finished, interrupted, failed or unreadable ones; a word or several.
        last: only so many.

    Returns:
        Columns method, data, state, rounds, metric and score (the first that judges it), verdict (good, doubtful or
        chance), seconds, of private runs epsilon and epsilon_of_set (of all runs on it so far),
        and why, where something is wrong.
    """
    if isinstance(state, str):
        state = (state,)
    chosen = listed_runs(places.runs(), method=method, data=data, states=state, last=last)
    columns = [field.name for field in fields(ListedRun)]
    return pd.DataFrame(chosen, columns=columns).set_index("name")


def compare(*names: str | Path | Run) -> pd.DataFrame:
    """Return runs side by side: a row each, with method, data, state, rounds, metrics, megabytes and seconds.

    Args:
        names: runs, or their names or folders; two at least.

    Raises:
        ShoalError: fewer than two, one of them twice, or no such run.
    """
    if len(names) < 2:
        raise ShoalError(f"{len(names)} runs cannot be compared: give two or more")
    named = [str(each.path if isinstance(each, Run) else each) for each in names]
    chosen = [RunFolder.find(name, unfinished=False) for name in named]
    check_different(chosen)
    return side_by_side(chosen)


def side_by_side(runs: Sequence[RunFolder]) -> pd.DataFrame:
    """Return the table of `compare`."""
    rows = []
    for run in runs:
        settings = run.settings()
        result = run_result(run)
        row = {
            "name": run.name,
            "method": settings.method.name,
            "data": settings.data.name,
            "state": result.status,
            "rounds": result.rounds,
            "verdict": "" if result.verdict is None else result.verdict.word,
            **result.metrics,
            **result.quality,
            **{f"MB_{way}": count / 1e6 for way, count in result.bytes.items()},
            "seconds": result.seconds,
        }
        rows.append(row)
    return pd.DataFrame(rows).set_index("name")
