"""The list of runs: the task and the result of each, and its removal."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.store.codec import disk_error
from shoal.engine.store.run_folder import INTERRUPTED, RUNNING, RunError, RunFolder, in_order
from shoal.methods.registry import METHODS
from shoal.review.results.clusters import expects_clusters
from shoal.review.results.result import run_result, shown_metrics

REMOVED = ".removed"
"""The folder, among the runs, of runs that are being removed."""
CLUSTER_SCORES = ("acc", "stability")
"""The scores that stand for clusters, with and without labels, the preferred one first."""
FEATURE_SCORES = ("probe", "knn")
"""The scores that stand for features, the preferred one first."""
UNREADABLE = "unreadable"
"""The state of a run with damaged files."""


@dataclass(frozen=True)
class ListedRun:
    """A line of the list.

    Args:
        name: of the run's folder.
        method, data: from its settings; empty where these cannot be read.
        state: running, finished, interrupted, stopped, failed or unreadable; a run whose status is running, but that no
            process works on, was interrupted.
        rounds: finished rounds.
        score: name and value of the main score; None where the run was not evaluated.
        bytes: size on the disk.
        seconds: sum over all rounds.
        why: what is wrong with the run; empty where nothing is.
        epsilon: of private updates, for a client's messages in this run, and in all private runs on its data set until
            this run's end; for noise that is not secret it is infinite, and None for the set.
    """

    name: str
    method: str = ""
    data: str = ""
    state: str = UNREADABLE
    rounds: int = 0
    score: tuple[str, float] | None = None
    bytes: int = 0
    seconds: float = 0.0
    why: str = ""
    epsilon: tuple[float, float | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON, which has no infinite numbers: None stands for one."""
        epsilon = self.epsilon and [None if e is None or math.isinf(e) else e for e in self.epsilon]
        return asdict(self) | {"epsilon": epsilon}


def listed_runs(
    runs: Path, *, method: str | None = None, data: str | None = None, states: Sequence[str] = ()
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first.

    Args:
        runs: the folder.
        method, data: only runs of this method, on this data set.
        states: only runs in one of these states.
    """
    found = (listed(RunFolder(path.parent)) for path in reversed(in_order(runs)))
    return [
        run
        for run in found
        if (method is None or run.method == method)
        and (data is None or run.data == data)
        and (not states or run.state in states)
    ]


def listed(run: RunFolder) -> ListedRun:
    """Return one run in a line; a run that cannot be read says why and raises no error."""
    size = bytes_of(run.path)
    try:
        settings = run.settings()
        result = run_result(run)
        state = result.status
        if state == RUNNING and not at_work(run):
            state = INTERRUPTED
        why = str(run.status().get("message", ""))
    except (ShoalError, OSError, ValueError, KeyError) as error:
        return ListedRun(run.name, bytes=size, why=str(error))
    kind = METHODS[settings.method.name]
    preferred = CLUSTER_SCORES if expects_clusters(kind) else FEATURE_SCORES
    epsilon: tuple[float, float | None] | None = None
    if "epsilon_sent" in result.metrics:
        epsilon = (result.metrics["epsilon_sent"], result.metrics.get("epsilon_set_sent"))
    return ListedRun(
        run.name,
        settings.method.name,
        settings.data.name,
        state,
        result.rounds,
        score=main_score(shown_metrics(result), preferred),
        bytes=size,
        seconds=result.seconds,
        why=why,
        epsilon=epsilon,
    )


def main_score(scores: Mapping[str, float], preferred: Sequence[str]) -> tuple[str, float] | None:
    """Return the score that stands for a run: the first of the preferred ones that it has, else its first score."""
    return next(((name, scores[name]) for name in (*preferred, *scores) if name in scores), None)


def bytes_of(folder: Path) -> int:
    """Return the bytes of the files below a folder, without files that vanish meanwhile."""
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
    """Return whether a process works on the run."""
    if not (run.path / "lock").exists():
        return False
    try:
        with run.locked():
            return False
    except RunError:
        return True


def remove_run(run: RunFolder) -> None:
    """Remove a run's folder; the run stays in MLflow.

    Raises:
        RunError: a process works on it. StoreError: the folder cannot be removed.
    """
    with run.locked():
        # There it is no longer listed as a run, even if the removal is cut short.
        bin = run.path.parent / REMOVED
        try:
            bin.mkdir(exist_ok=True)
            run.path.rename(bin / run.name)
        except OSError as error:
            raise disk_error(run.path, error) from error
    shutil.rmtree(bin, ignore_errors=True)
