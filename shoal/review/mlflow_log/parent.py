"""A parent run in MLflow: the runs of a comparison, nested under one row.

The parent is looked up by a tag and created where it is missing, so that the same comparison again adds to it.
Where MLflow is out of reach, a warning says so, and the next time brings it up to date.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.experiments import NOTE, experiment_of
from shoal.review.mlflow_log.run import PARENT, RUN_ID, run_with_tag
from shoal.review.mlflow_log.tracking import artifact_folder, open_client, reason_of, shown_uri, tracking_uri
from shoal.review.results.summary import counted

MAX_TAG_CHARACTERS = 8000
"""Characters of a tag's value that MLflow keeps."""


@dataclass
class ParentRun:
    """A run in MLflow under which other runs are nested.

    Attributes:
        settings: of one of the runs; they say where to log. With `tracking.mlflow` false nothing is logged.
        key: tag and value by which the parent is looked up, such as ("shoal.comparison", a digest).
        name: its name on MLflow's page.
        tags: further tags.
        reached: whether MLflow has all that was logged so far.
    """

    settings: Settings
    key: tuple[str, str]
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    reached: bool = field(init=False)
    _client: Any = field(init=False)
    _experiment: str = field(init=False)
    _id: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.reached = self.settings.tracking.mlflow

    def adopt(self, run: RunFolder) -> None:
        """Nest a run under this one, whether MLflow has the run already or not; a run with a parent keeps it.

        Args:
            run: the run's folder; no process works on it.
        """

        def nest() -> None:
            child = run_with_tag(self._client, self._experiment, RUN_ID, run.lineage().id)
            if child is None:
                run.set_tracking(mlflow_parent=self._id)
            elif PARENT not in child.data.tags:
                self._client.set_tag(child.info.run_id, PARENT, self._id)

        self._safely(nest)

    def finish(self, metrics: Mapping[str, float], files: Path | None, note: str, step: int = 0) -> None:
        """Log the results, and end the parent.

        Args:
            metrics: by name, with their sections.
            files: a folder of artifacts.
            note: the description, in Markdown.
            step: of the metrics.
        """

        def log() -> None:
            from mlflow.entities import Metric

            now = int(time.time() * 1000)
            finite = [Metric(name, value, now, step) for name, value in metrics.items() if math.isfinite(value)]
            self._client.log_batch(self._id, metrics=finite)
            if files is not None:
                self._client.log_artifacts(self._id, str(files))
            self._client.set_tag(self._id, NOTE, note[:MAX_TAG_CHARACTERS])
            self._client.set_terminated(self._id, "FINISHED")

        self._safely(log)

    def stop(self) -> None:
        """Mark the parent as cut short, if it was begun."""
        if self._id is not None:
            self._safely(lambda: self._client.set_terminated(self._id, "KILLED"))

    def _safely(self, work: Callable[[], None]) -> None:
        if not self.reached:  # each further attempt would wait for it
            return
        try:
            if self._id is None:
                self._begin()
            work()
        except Exception as error:  # whatever MLflow raises: the runs matter more than their parent
            self.reached = False
            logging.getLogger(__name__).warning(
                "MLflow at %s does not have %s (%s); the same command again logs it",
                shown_uri(self.settings),
                self.name,
                reason_of(error, self.settings),
            )

    def _begin(self) -> None:
        self._client = open_client(self.settings)
        artifacts = artifact_folder(tracking_uri(self.settings))
        self._experiment = experiment_of(self._client, self.settings.tracking.experiment, artifacts)
        parent = run_with_tag(self._client, self._experiment, *self.key)
        if parent is None:
            tags = {self.key[0]: self.key[1], "mlflow.source.name": self.key[1], **self.tags}
            parent = self._client.create_run(self._experiment, tags=tags, run_name=self.name)
        self._id = str(parent.info.run_id)
        self._client.update_run(self._id, status="RUNNING", name=self.name)


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
