"""A parent run in MLflow: the runs of a comparison, nested under one row.

The parent is found by a tag and created where it is missing, so that the same comparison again adds to it.
Where MLflow is out of reach, a warning says so, and the next time brings it up to date.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.experiments import NOTE, experiment_of
from shoal.review.mlflow_log.rounds import BATCH
from shoal.review.mlflow_log.run import PARENT, known_run, lookup
from shoal.review.mlflow_log.tracking import artifact_folder, open_client, shown_uri, tracking_uri
from shoal.review.mlflow_log.trouble import reason_of

MAX_TAG_CHARACTERS = 8000
"""Characters of a tag's value that MLflow keeps."""


class ParentRun:
    """A run in MLflow under which other runs are nested.

    Args:
        settings: of one of the runs; they say where to log. With `tracking.mlflow` false nothing is logged.
        key: tag and value by which the parent is found, such as ("shoal.comparison", a digest).
        name: its name on MLflow's page.
        tags: further tags.
    """

    def __init__(
        self, settings: Settings, key: tuple[str, str], name: str, tags: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._key = key
        self._name = name
        self._tags = dict(tags or {})
        self._shown = shown_uri(settings)
        self._client: Any = None
        self._id: str | None = None
        self._away = not settings.tracking.mlflow

    @property
    def reached(self) -> bool:
        """Whether MLflow has all that was logged so far."""
        return self._id is not None and not self._away

    def adopt(self, run: RunFolder) -> None:
        """Nest a run under this one, whether MLflow has the run already or not; a run with a parent keeps it.

        Args:
            run: the run's folder; no process works on it.
        """
        if not self._away:
            self._safely(lambda: self._adopt(run))

    def finish(self, metrics: Mapping[str, float], files: Path | None, note: str, step: int = 0) -> None:
        """Log the results, and end the parent.

        Args:
            metrics: by name, with their sections; metrics that are logged with the same value stay.
            files: a folder of artifacts.
            note: the description, in Markdown.
            step: of the metrics.
        """
        if not self._away:
            self._safely(lambda: self._finish(metrics, files, note, step))

    def stop(self) -> None:
        """Mark the parent as cut short, if it was begun."""
        if not self._away and self._id is not None:
            self._safely(lambda: self._client.set_terminated(self._id, "KILLED"))

    def _safely(self, work: Any) -> None:
        try:
            if self._id is None:
                self._begin()
            work()
        except Exception as error:  # whatever MLflow raises: the runs matter more than their parent
            self._away = True  # each further attempt would wait for it
            logging.getLogger(__name__).warning(
                "MLflow at %s does not have %s (%s); the same command again logs it",
                self._shown,
                self._name,
                reason_of(error, self._settings),
            )

    def _begin(self) -> None:
        self._client = open_client(self._settings)
        artifacts = artifact_folder(tracking_uri(self._settings))
        experiment = experiment_of(self._client, self._settings.tracking.experiment, artifacts)
        tag, value = self._key
        found = self._client.search_runs([experiment], f"tags.`{tag}` = '{value}'", max_results=1)
        if found:
            self._id = str(found[0].info.run_id)
            self._client.update_run(self._id, status="RUNNING", name=self._name)
        else:
            about = {tag: value, "mlflow.source.name": value, "mlflow.source.type": "LOCAL", **self._tags}
            self._id = str(self._client.create_run(experiment, tags=about, run_name=self._name).info.run_id)

    def _adopt(self, run: RunFolder) -> None:
        child = known_run(self._client, run, self._shown)
        if child is None:
            run.set_tracking(mlflow_parent=self._id)
            return
        parent = child.data.tags.get(PARENT)
        if parent is None or lookup(self._client, parent) is None:
            self._client.set_tag(child.info.run_id, PARENT, self._id)

    def _finish(self, metrics: Mapping[str, float], files: Path | None, note: str, step: int) -> None:
        from mlflow.entities import Metric, RunTag
        from mlflow.utils.time import get_current_time_millis

        now = get_current_time_millis()
        logged = self._client.get_run(self._id).data.metrics
        new = [
            Metric(name, value, now, step)
            for name, value in metrics.items()
            if math.isfinite(value) and logged.get(name) != value
        ]
        for start in range(0, len(new), BATCH):
            self._client.log_batch(self._id, metrics=new[start : start + BATCH])
        if files is not None:
            self._client.log_artifacts(self._id, str(files))
        self._client.log_batch(self._id, tags=[RunTag(NOTE, note[:MAX_TAG_CHARACTERS])])
        self._client.set_terminated(self._id, "FINISHED")
