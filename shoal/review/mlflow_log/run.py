"""A run on MLflow's page: its experiment, name, lineage, data sets and settings."""

from __future__ import annotations

from typing import Any

from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import recorded_uri
from shoal.review.mlflow_log.experiments import experiment_of
from shoal.review.mlflow_log.rounds import allowed_name, round_stamp
from shoal.review.mlflow_log.run_names import run_name

PARENT = "mlflow.parentRunId"
"""Tag of a run: the id of the run that it is nested under."""
RUN_ID = "shoal.run_id"
"""Tag of a run: the number in its lineage, the same wherever its folder lies."""
MAX_PARAMETER_CHARACTERS = 6000
"""Characters of a parameter's value that MLflow keeps."""


def mlflow_run(client: Any, run: RunFolder, settings: Settings, shown: str) -> Any:
    """Return the MLflow run of a run folder: the one that it has, or a new one with parameters, tags and data sets.

    Args:
        client: an MlflowClient.
        run: the run's folder; its status keeps the id.
        settings: of the run.
        shown: the tracking server's address without secrets, as in the status.

    Returns:
        An mlflow.entities.Run.
    """
    from mlflow.entities import Param

    experiment_id = experiment_of(client, settings.tracking.experiment)
    logged = run_with_tag(client, experiment_id, RUN_ID, run.lineage().id)
    if logged is None:
        start = round_stamp(run, 0) or None
        logged = client.create_run(experiment_id, start, tags(run), run_name(settings))
    run_id = logged.info.run_id
    if not logged.inputs.dataset_inputs:  # they are logged last
        client.log_batch(run_id, params=[Param(key, value) for key, value in parameters(settings).items()])
        client.log_inputs(run_id, data_sets(run, settings))
        logged = client.get_run(run_id)
    if run.status().tracking.mlflow_run != run_id:
        run.set_tracking(mlflow_run=run_id, mlflow_uri=recorded_uri(shown))
    return logged


def run_with_tag(client: Any, experiment_id: str, tag: str, value: str) -> Any | None:
    """Return the MLflow run of an experiment with a tag; None where there is none."""
    runs = client.search_runs([experiment_id], f"tags.`{tag}` = '{value}'", max_results=1)
    return runs[0] if runs else None


def data_sets(run: RunFolder, settings: Settings) -> list[Any]:
    """Return the prepared data of a run, and their partition, as inputs of an MLflow run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    lineage = run.lineage()
    return [
        DatasetInput(
            Dataset(f"{settings.data.name} {context}", stored.digest[:36], "local", stored.folder),
            [InputTag("mlflow.data.context", context)],
        )
        for context, stored in (("data", lineage.data), ("partition", lineage.partition))
    ]


def parameters(settings: Settings) -> dict[str, str]:
    """Return every setting by its path; for a value that is longer than MLflow keeps, say where it is."""
    values = {}
    for key, value in flatten(settings).items():
        text = str(value)
        if len(text) > MAX_PARAMETER_CHARACTERS:
            text = f"{len(text)} characters: see {key} in settings.yaml"
        values[allowed_name(key)] = text
    return values


def tags(run: RunFolder) -> dict[str, str]:
    """Return the lineage as tags: from a number in MLflow back to code, data and settings."""
    lineage = run.lineage()
    tracking = run.status().tracking
    values = {
        "shoal.run": run.name,
        RUN_ID: lineage.id,
        "shoal.run_folder": stored_path(run.path),
        "shoal.settings_sha256": lineage.settings_sha256,
        "shoal.data_sha256": lineage.data.digest,
        "shoal.data_dvc": lineage.data.dvc,
        "shoal.encoder": None if lineage.encoder is None else lineage.encoder.in_words(),
        "shoal.encoder_sha256": lineage.encoder_sha256 or None,
        "shoal.partition_sha256": lineage.partition.digest,
        "shoal.partition_dvc": lineage.partition.dvc,
        "shoal.git_commit": lineage.git.commit,
        "shoal.git_dirty": lineage.git.dirty,
        "shoal.version": lineage.shoal.version,
        "shoal.code_sha256": lineage.shoal.sha256,
        "shoal.code_commit": lineage.shoal.git.commit,
        "shoal.code_dirty": lineage.shoal.git.dirty,
        "shoal.prefect_flow_run": None if tracking.prefect is None else tracking.prefect.flow_run,
        # The columns Source and Version of MLflow's page.
        "mlflow.source.name": run.name,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": lineage.git.commit,
        **{f"shoal.site.{allowed_name(name)}_sha256": site.digest for name, site in lineage.sites.items()},
    }
    return {key: str(value) for key, value in values.items() if value is not None}
