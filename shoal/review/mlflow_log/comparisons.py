"""A comparison of runs in MLflow: a parent run with the numbers of all runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.mlflow_log.rounds import allowed_name, metric_name
from shoal.review.results.result import run_result, shown_metrics

TAG = "shoal.comparison"
"""Tag of a parent run: the name of the comparison."""


def log_comparison(name: str, runs: Sequence[RunFolder]) -> None:
    """Log runs side by side, nested under a run `comparison NAME`; the same name again adds to it.

    A run that is already nested under another one stays there. Where MLflow is out of reach, a
    warning says so. Nothing is logged where the first run's settings have `tracking.mlflow` false.

    Args:
        name: of the comparison.
        runs: the runs to compare, in the order of the table.
    """
    parent = ParentRun(runs[0].settings(), (TAG, allowed_name(name)), f"comparison {name}")
    metrics: dict[str, float] = {}
    for run in runs:
        parent.adopt(run)
        values = shown_metrics(run_result(run))
        metrics |= {f"{metric_name(key)}/{run.name}": value for key, value in values.items()}
    names = "\n".join(f"- {run.name}" for run in runs)
    parent.finish(metrics, None, f"Select the nested runs and *Compare* to see them side by side:\n\n{names}")
