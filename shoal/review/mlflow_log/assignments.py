"""Assignments of new files in MLflow: a run for each batch, with its table, its contact sheet and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.parent import ParentRun
from shoal.review.results.stable_names import NAME
from shoal.review.results.summary import counted

MAX_LEFT_OUT = 20
"""Files that the description names."""
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
    run.finish(metrics, folder, description(table, model, version, left_out))
    return run.reached


def description(table: pd.DataFrame, model: str, version: str, left_out: Sequence[str]) -> str:
    """Return what a batch holds, in Markdown: the model, the clusters, and the files that were left out."""
    samples = counted(len(table), "sample")
    address = f"#/models/{quote(model)}/versions/{version}"
    parts = [
        f"{samples} assigned by [version {version} of {model}]({address}). The artifacts hold the table, and of images "
        "a contact sheet.",
        clusters_in_markdown(table),
    ]
    if left_out:
        named = [f"- {each}" for each in left_out[:MAX_LEFT_OUT]]
        if len(left_out) > MAX_LEFT_OUT:
            named.append(f"- and {len(left_out) - MAX_LEFT_OUT} more, in batch.json")
        parts.append("\n".join(["Left out:", "", *named]))
    return "\n\n".join(parts)


def clusters_in_markdown(table: pd.DataFrame) -> str:
    """Return samples and mean confidence of each cluster as a table."""
    rows = ["| cluster | samples | mean confidence |", "| --- | --- | --- |"]
    for cluster, row in table.groupby(NAME)["confidence"].agg(["size", "mean"]).iterrows():
        rows.append(f"| {int(cluster)} | {int(row['size']):,} | {row['mean']:.3f} |")
    return "\n".join(rows)
