"""A search in MLflow: a parent run with the best settings and their score, under which the trials' runs are nested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.mlflow_log.rounds import allowed_name, metric_name
from shoal.sweeps.definition import SearchDefinition
from shoal.sweeps.importance import Importance
from shoal.sweeps.result import SearchResult
from shoal.sweeps.words import caveats, shown

TAG = "shoal.search"
"""Tag of a parent run: the name of the search."""


def parent_of(definition: SearchDefinition, settings: Settings) -> ParentRun:
    """The run in MLflow that the runs of a search are nested under.

    Args:
        definition: of the search.
        settings: that all trials share.
    """
    tags = {"shoal.score": definition.score, "shoal.sampler": definition.sampler, "shoal.pruner": definition.pruner}
    return ParentRun(settings, places.mlflow_store(), (TAG, definition.name), f"search {definition.name}", tags)


def log_result(
    parent: ParentRun, definition: SearchDefinition, result: SearchResult, importance: Sequence[Importance]
) -> None:
    """Log what a search came to: the best score and settings, how many trials, importances, and its folder."""
    files = Path(result.folder)
    parent.finish(metrics_of(result, importance), files, note_of(definition, result), step=len(result.trials))


def metrics_of(result: SearchResult, importance: Sequence[Importance]) -> dict[str, float]:
    """The best score and its numeric settings, counts of trials, and importances, by names in MLflow."""
    best = result.best_trial
    found = {f"trials/{state}": float(count) for state, count in result.counts().items()}
    if best is not None and best.score is not None:
        found |= {f"best/{metric_name(result.score)}": best.score, "best/trial": float(best.number)}
        numbers = {k: v for k, v in best.values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        found |= {f"best/{allowed_name(setting)}": float(value) for setting, value in numbers.items()}
    return {**found, **{f"importance/{allowed_name(each.setting)}": each.share for each in importance}}


def note_of(definition: SearchDefinition, result: SearchResult) -> str:
    """The search in words: the best trial, its settings, and how far to trust it."""
    best, counts = result.best_trial, result.counts()
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    head = f"Search over {', '.join(definition.vary)} by {result.score}: {len(result.trials)} trials ({told})."
    if best is None or best.score is None:
        return head
    settings = "\n".join(f"- `{setting}`: {shown(value)}" for setting, value in best.values.items())
    found = f"Best: trial {best.number} with {result.score} {best.score:.4f}\n\n{settings}"
    return "\n\n".join((head, found, *caveats(definition, result)))
