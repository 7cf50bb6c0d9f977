"""A search in MLflow: the parent run has the best settings and their score, and the trials' runs are nested in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.mlflow_log.rounds import allowed_name, metric_name
from shoal.sweeps.search.caveats import caveats, value_in_words
from shoal.sweeps.search.definition import SearchDefinition
from shoal.sweeps.search.result import SearchResult


def log_result(
    parent: ParentRun, definition: SearchDefinition, result: SearchResult, importance: Mapping[str, float]
) -> None:
    """Log a search: the best score and settings, counts of trials, importances, and the files of its folder."""
    files = Path(result.folder)
    parent.finish(result_metrics(result, importance), files, note(definition, result), step=len(result.trials))


def result_metrics(result: SearchResult, importance: Mapping[str, float]) -> dict[str, float]:
    """Return the best score and its numeric settings, counts of trials, and importances, by names in MLflow."""
    metrics = {f"trials/{state}": float(count) for state, count in result.counts().items()}
    metrics |= {f"importance/{allowed_name(setting)}": share for setting, share in importance.items()}
    best = result.best_trial
    if best is None or best.score is None:
        return metrics
    metrics |= {f"best/{metric_name(result.score)}": best.score, "best/trial": float(best.number)}
    for setting, value in best.values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            metrics[f"best/{allowed_name(setting)}"] = float(value)
    return metrics


def note(definition: SearchDefinition, result: SearchResult) -> str:
    """Return the search in words: the best trial, its settings, and how far to trust it."""
    trials = f"{len(result.trials)} trials ({result.summary()})"
    head = f"Search over {', '.join(definition.vary)} by {result.score}: {trials}."
    best = result.best_trial
    if best is None or best.score is None:
        return head
    settings = "\n".join(f"- `{setting}`: {value_in_words(value)}" for setting, value in best.values.items())
    summary = f"Best: trial {best.number} with {result.score} {best.score:.4f}\n\n{settings}"
    return "\n\n".join((head, summary, *caveats(definition, result)))
