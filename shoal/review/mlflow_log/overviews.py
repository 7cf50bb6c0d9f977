"""Runs in MLflow that stand for no run folder: a search, with its trials' runs nested in it, and a batch of new files.

Such a run is looked up by a tag, so that the same search or batch again adds to it. Where MLflow is out of reach, a
warning says so, and the next time brings it up to date.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.experiments import NOTE, experiment_of
from shoal.review.mlflow_log.run import PARENT, RUN_ID, run_with_tag
from shoal.review.mlflow_log.tracking import open_client, reason_of, shown_uri
from shoal.review.results.summary import counted

MAX_TAG_CHARACTERS = 8000
"""Characters of a tag's value that MLflow keeps."""


@dataclass(frozen=True)
class Overview:
    """The content of such a run.

    Attributes:
        key: tag and value by which it is looked up, such as ("shoal.search", "learning-rate").
        name: its name on MLflow's page.
        metrics: by name, with their sections.
        folder: its artifacts.
        note: the description, in Markdown.
        tags: further tags.
        step: of the metrics.
        nested: runs that stand below it; one that MLflow has below another keeps its place.
    """

    key: tuple[str, str]
    name: str
    metrics: Mapping[str, float]
    folder: Path
    note: str
    tags: Mapping[str, str] = field(default_factory=dict)
    step: int = 0
    nested: Sequence[RunFolder] = ()


def log_overview(settings: Settings, overview: Overview) -> bool:
    """Log such a run, and return whether MLflow has it now; with `tracking.mlflow` false nothing is logged.

    Args:
        settings: of a federated run; they say where to log.
        overview: the content.
    """
    if not settings.tracking.mlflow:
        return False
    try:
        _log(settings, overview)
    except Exception as error:  # whatever MLflow raises: what it would show is on the disk
        logging.getLogger(__name__).warning(
            "MLflow at %s does not have %s (%s); the same command again logs it",
            shown_uri(settings),
            overview.name,
            reason_of(error, settings),
        )
        return False
    return True


def _log(settings: Settings, overview: Overview) -> None:
    from mlflow.entities import Metric

    client = open_client(settings)
    experiment = experiment_of(client, settings.tracking.experiment)
    run = run_with_tag(client, experiment, *overview.key)
    if run is None:
        tag, value = overview.key
        tags = {tag: value, "mlflow.source.name": value, **overview.tags}
        run = client.create_run(experiment, tags=tags, run_name=overview.name)
    run_id = run.info.run_id
    now = int(time.time() * 1000)
    client.log_batch(run_id, [Metric(name, value, now, overview.step) for name, value in overview.metrics.items()])
    client.log_artifacts(run_id, str(overview.folder))
    client.set_tag(run_id, NOTE, overview.note[:MAX_TAG_CHARACTERS])
    for folder in overview.nested:
        below = run_with_tag(client, experiment, RUN_ID, folder.lineage().id)
        if below is not None and PARENT not in below.data.tags:
            client.set_tag(below.info.run_id, PARENT, run_id)
    client.set_terminated(run_id)


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
    metrics = {"assigned/samples": float(len(table)), "assigned/skipped": float(len(left_out))}
    if len(table):
        metrics["assigned/mean_confidence"] = float(table["confidence"].mean())
    note = (
        f"{name}; {counted(len(left_out), 'file')} left out. The artifacts hold the table, the files that were left "
        "out with their reasons (batch.json), and of images a contact sheet."
    )
    return log_overview(champion.settings(), Overview((TAG, f"{model} {batch}"), name, metrics, folder, note, tags))
