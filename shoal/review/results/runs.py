"""A run as one line of the list of runs, and the removal of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.status import INTERRUPTED, RUNNING
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import shown_in
from shoal.review.results.clusters import expects_clusters
from shoal.review.results.listed_run import ListedRun
from shoal.review.results.result import run_result, shown_metrics

CLUSTER_SCORES = ("acc", "neighbour_agreement")
"""The numbers that judge clusters, with labels and without: a run is listed with the first that it has."""
FEATURE_SCORES = ("probe", "knn")
"""The numbers that judge features."""


def list_run(run: RunFolder) -> ListedRun:
    """Return one run in a line; a run that cannot be read says why, and is no error."""
    size = bytes_of(run.path)
    try:
        settings = run.settings()
        result = run_result(run)
        state = result.status
        if state == RUNNING and not at_work(run):
            state = INTERRUPTED
        why = run.status().message
    except (ShoalError, OSError, ValueError, KeyError) as error:
        return ListedRun(run.name, bytes=size, why=str(error))
    kind = METHODS[settings.method.name]
    epsilon = None
    if "epsilon_sent" in result.metrics:
        epsilon = (result.metrics["epsilon_sent"], result.metrics.get("epsilon_set_sent"))
    verdict = ""
    if result.verdict is not None:
        verdict = result.verdict.word
    return ListedRun(
        run.name,
        method=settings.method.name,
        data=settings.data.name,
        state=state,
        rounds=result.rounds,
        score=main_score(shown_metrics(result), of_features=not expects_clusters(kind)),
        bytes=size,
        seconds=result.seconds,
        why=why,
        epsilon=epsilon,
        verdict=verdict,
    )


def main_score(shown: Mapping[str, float], *, of_features: bool) -> tuple[str, float] | None:
    """Return the score that stands for a run: the first of those for its kind, else the first that comparisons show."""
    first = CLUSTER_SCORES
    if of_features:
        first = FEATURE_SCORES
    others = [metric.name for metric in shown_in("comparison")]
    return next(((name, shown[name]) for name in (*first, *others) if name in shown), None)


def bytes_of(folder: Path) -> int:
    """Count the bytes of the files below a folder; files that vanish meanwhile are left out."""
    total = 0
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def at_work(run: RunFolder) -> bool:
    """Return whether a process holds the run."""
    if not (run.path / "lock").exists():
        return False
    try:
        with run.locked(patience=0):
            return False
    except RunError:
        return True
