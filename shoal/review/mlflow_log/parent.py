"""A parent run in MLflow: what belongs together (the runs of a study, runs that are compared) nested under one row.

The parent is found by a tag and made where it is not there, so that repeating what it stands for adds to it. MLflow out
of reach stops nothing: one sentence says so, and the next time brings it up to date.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import brief
from shoal.engine.settings.addresses import masked
from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import is_kept_uri, ready_store, store_uri
from shoal.review.mlflow_log.rounds import BATCH
from shoal.review.mlflow_log.run import NOTE, experiment_of, lookup
from shoal.review.mlflow_log.tracking import artifact_folder, shown_uri, tracking_uri
from shoal.review.mlflow_log.trouble import check_installed

PARENT = "mlflow.parentRunId"
"""Tag of a run: the id of the run that it is nested under."""
LONGEST = 8000
"""Characters of a tag's value that MLflow keeps."""


class ParentRun:
    """A run of MLflow's that others are nested under.

    Args:
        settings: of one of the runs: where they are logged. With `tracking.mlflow` false nothing is.
        store: folder of the embedded store.
        key: tag and value by which it is found again, such as ("shoal.study", "fedpnp-table1 cpu").
        name: what people call it.
        tags: further ones.
    """

    def __init__(
        self, settings: Settings, store: Path, key: tuple[str, str], name: str, tags: Mapping[str, str] | None = None
    ) -> None:
        self._settings, self._store, self._key, self._name = settings, store, key, name
        self._tags = dict(tags or {})
        self._shown = shown_uri(settings, store)
        self._client: Any = None
        self._id: str | None = None
        self._away = not settings.tracking.mlflow

    def adopt(self, run: RunFolder) -> None:
        """Nest a run under this one, whether MLflow has it already or will have it; what has a parent keeps it.

        Args:
            run: the run's folder; nobody works on it.
        """
        if not self._away:
            self._safely(lambda: self._adopt(run))

    def finish(
        self, metrics: Mapping[str, float], files: Path | None, note: str, step: int = 0, status: str = "FINISHED"
    ) -> None:
        """Log what came out, and end the parent.

        Args:
            metrics: by name, with their sections; what is logged with the same value stays.
            files: a folder of artifacts.
            note: the description, in Markdown.
            step: of the metrics.
            status: of the parent.
        """
        if not self._away:
            self._safely(lambda: self._finish(metrics, files, note, step, status))

    def stop(self) -> None:
        """Say that it was cut short, where it was begun."""
        if not self._away and self._id is not None:
            self._safely(lambda: self._client.set_terminated(self._id, "KILLED"))

    def _safely(self, work: Any) -> None:
        try:
            if self._id is None:
                self._begin()
            work()
        except Exception as error:  # whatever MLflow raises, the runs are worth more than their parent
            self._away = True  # each further try would wait for it
            said = masked(brief(error), self._settings.tracking.uri)
            logging.getLogger(__name__).warning(
                "MLflow at %s does not have %s (%s); the same command again logs it", self._shown, self._name, said
            )

    def _begin(self) -> None:
        check_installed()
        from mlflow import MlflowClient

        uri = tracking_uri(self._settings, self._store)
        if uri == store_uri(self._store):
            ready_store(self._store)
        self._client = MlflowClient(tracking_uri=uri)
        artifacts = artifact_folder(uri, self._store)
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
        about = run.lineage()
        there = about.mlflow_run if is_kept_uri(about.mlflow_uri, self._shown, self._store) else None
        child = lookup(self._client, there) if there else None
        if child is None:
            run.set_lineage(mlflow_parent=self._id)
            return
        parent = child.data.tags.get(PARENT)
        if parent is None or lookup(self._client, parent) is None:
            self._client.set_tag(there, PARENT, self._id)

    def _finish(self, metrics: Mapping[str, float], files: Path | None, note: str, step: int, status: str) -> None:
        from mlflow.entities import Metric, RunTag
        from mlflow.utils.time import get_current_time_millis

        now, known = get_current_time_millis(), self._client.get_run(self._id).data.metrics
        new = [
            Metric(name, value, now, step)
            for name, value in metrics.items()
            if math.isfinite(value) and known.get(name) != value
        ]
        for start in range(0, len(new), BATCH):
            self._client.log_batch(self._id, metrics=new[start : start + BATCH])
        if files is not None:
            self._client.log_artifacts(self._id, str(files))
        self._client.log_batch(self._id, tags=[RunTag(NOTE, note[:LONGEST])])
        self._client.set_terminated(self._id, status)
