"""The list of all runs, a line a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.engine.store.run_order import in_order
from shoal.engine.store.status import INTERRUPTED, RUNNING
from shoal.methods.registry import METHODS
from shoal.methods.scores.metrics import shown_in
from shoal.review.results.clusters import expects_clusters
from shoal.review.results.result import run_result, shown_metrics

UNREADABLE = "unreadable"
"""The state of a run whose files cannot be trusted any more."""
AT_SITE = "site"
"""The state of a site's part of a run: whether the run goes on is known where it is led."""
CLUSTER_SCORES = ("acc", "neighbour_agreement")
"""The numbers that judge clusters, with labels and without: a run is listed with the first that it has."""
FEATURE_SCORES = ("probe", "knn")
"""The numbers that judge features."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a line.

    Args:
        name: of its folder.
        method, data: as in its settings; empty where these cannot be read.
        state: running, finished, interrupted, failed, unreadable or site; a run that says it runs and that no process
            works on was interrupted.
        rounds: rounds done; at a site the last one in which it trained.
        metric, score: name and value of the first number that judges it; None where it was not judged.
        verdict: good, doubtful or chance; empty where there is none.
        seconds: of all rounds.
        epsilon, epsilon_of_set: of private updates: of a client's messages in this run, and in all private runs on its
            data set up to its end; of noise that is not secret infinite, and None for the set.
        why: what is wrong with it, where something is.
    """

    name: str
    method: str = ""
    data: str = ""
    state: str = UNREADABLE
    rounds: int = 0
    metric: str | None = None
    score: float | None = None
    verdict: str = ""
    seconds: float = 0.0
    epsilon: float | None = None
    epsilon_of_set: float | None = None
    why: str = ""


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
        if method in (None, run.method) and data in (None, run.data) and (not states or run.state in states)
    )
    return list(islice(matching, last))


def list_run(run: RunFolder) -> ListedRun:
    """Return one run in a line; a run that cannot be read says why, and is no error."""
    try:
        settings = run.settings()
        result = run_result(run)
        state = result.status
        rounds = result.rounds
        if run.name == run.lineage().id:
            state = AT_SITE
            rounds = max((int(path.name) for path in run.work.glob("*")), default=0)
        if state == RUNNING and not at_work(run):
            state = INTERRUPTED
        why = run.status().message
    except (ShoalError, OSError, ValueError, KeyError) as error:
        return ListedRun(run.name, why=str(error))
    of_features = not expects_clusters(METHODS[settings.method.name])
    metric, score = main_score(shown_metrics(result), of_features=of_features) or (None, None)
    return ListedRun(
        run.name,
        method=settings.method.name,
        data=settings.data.name,
        state=state,
        rounds=rounds,
        metric=metric,
        score=score,
        verdict="" if result.verdict is None else result.verdict.word,
        seconds=result.seconds,
        epsilon=result.metrics.get("epsilon_sent"),
        epsilon_of_set=result.metrics.get("epsilon_set_sent"),
        why=why,
    )


def main_score(shown: Mapping[str, float], *, of_features: bool) -> tuple[str, float] | None:
    """Return the score that stands for a run: the first of those for its kind, else the first that comparisons show."""
    first = CLUSTER_SCORES
    if of_features:
        first = FEATURE_SCORES
    others = [metric.name for metric in shown_in("comparison")]
    return next(((name, shown[name]) for name in (*first, *others) if name in shown), None)


def at_work(run: RunFolder) -> bool:
    """Return whether a process holds the run."""
    if not (run.path / "lock").exists():
        return False
    try:
        with run.locked(patience=0):
            return False
    except RunError:
        return True


def check_different(runs: Sequence[RunFolder]) -> None:
    """Refuse a run that is named twice.

    Raises:
        ShoalError: names the run.
    """
    paths = [run.path.resolve() for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise ShoalError(f"run {path.name} is named twice: name different runs to compare")


def why_not_comparable(runs: Sequence[RunFolder]) -> str | None:
    """Return a sentence on why the numbers of runs do not tell which method is better; None where they do."""
    settings = [run.settings() for run in runs]
    if len({(run.lineage().data.digest, one.data.limit) for run, one in zip(runs, settings, strict=True)}) > 1:
        return "the runs are on different data: their numbers do not tell which method is better"
    # The partition does not change a run whose method pools all data.
    if len({one.partition for one in settings if not METHODS[one.method.name].pooled}) > 1:
        return "the runs divide the data in different ways: their numbers do not tell which method is better"
    return None
