"""Assignments of new files in MLflow: a run for each batch, with its table, its contact sheet and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.results.summary import counted

TAG = "shoal.assignment"
"""Tag of a run: the model and the number of the batch, by which a repeated log finds it."""


def log_assignment(
    champion: RunFolder,
    model: str,
    version: str,
    batch: str,
    folder: Path,
    table: pd.DataFrame,
    left_out: Sequence[str],
) -> bool:
    """Log a batch of assigned files; the same batch again changes nothing. A warning says if MLflow is out of reach.

    Args:
        champion: the run whose model assigned them; its settings say where to log.
        model: the registered name.
        version: of the model.
        batch: number of the batch.
        folder: with the files of the batch.
        table: a row a sample.
        left_out: a sentence for each file that could not be used.

    Returns:
        Whether MLflow has it.
    """
    tags = {"shoal.model": model, "shoal.model_version": version, "shoal.assigned_by": champion.name}
    name = f"{counted(len(table), 'sample')} assigned by version {version} of {model}"
    run = ParentRun(champion.settings(), (TAG, f"{model} {batch}"), name, tags)
    metrics = {"assigned/samples": float(len(table)), "assigned/skipped": float(len(left_out))}
    if len(table):
        metrics["assigned/mean_confidence"] = float(table["confidence"].mean())
    run.finish(
        metrics,
        folder,
        f"{name}; {counted(len(left_out), 'file')} left out. The artifacts hold the table, the files that were left "
        "out with their reasons (batch.json), and of images a contact sheet.",
    )
    return run.reached
