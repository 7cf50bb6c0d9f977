"""Runs side by side: whether their numbers can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS


def is_pooled(run: RunFolder) -> bool:
    """Return whether a run's method pools all data, so that the partition does not change it."""
    return METHODS[run.settings().method.name].pooled


def partition_of(run: RunFolder) -> tuple[str, str]:
    """Return the data of a run, and how they are divided, whatever the seed: equal words mean comparable runs."""
    settings = run.settings()
    data = f"{run.lineage().data.digest} {settings.data.limit}"
    return data, json.dumps(settings.to_json()["partition"], sort_keys=True)


def check_different(runs: Sequence[RunFolder]) -> None:
    """Refuse a run that is named twice.

    Raises:
        ShoalError: names the run.
    """
    seen = set()
    for run in runs:
        if run.path.resolve() in seen:
            raise ShoalError(f"run {run.name} is named twice: name different runs to compare")
        seen.add(run.path.resolve())


def why_not_comparable(runs: Sequence[RunFolder]) -> str | None:
    """Return a sentence on why the numbers of runs do not tell which method is better; None where they do."""
    origins = {run.path: partition_of(run) for run in runs}
    if len({data for data, _ in origins.values()}) > 1:
        return "the runs are on different data: their numbers do not tell which method is better"
    if len({origins[run.path] for run in runs if not is_pooled(run)}) > 1:
        return "the runs divide the data in different ways: their numbers do not tell which method is better"
    return None
