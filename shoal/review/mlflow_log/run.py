"""A run on MLflow's page: its experiment, name, lineage, data sets and settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class DataSet:
    """A data set in MLflow.

    Attributes:
        name, digest: identify it in metrics.
        source: its folder.
        context: data or partition.
    """

    name: str
    digest: str
    source: str
    context: str


def data_sets(run: RunFolder, settings: Settings) -> tuple[DataSet, DataSet]:
    """Return the prepared data of a run, and their partition."""
    lineage = run.lineage()
    name = settings.data.name
    data = DataSet(f"{name} data", lineage.data.digest[:36], lineage.data.folder, "data")
    partition = DataSet(f"{name} partition", lineage.partition.digest[:36], lineage.partition.folder, "partition")
    return data, partition


def mlflow_run(client: Any, run: RunFolder, settings: Settings, shown: str, artifacts: Path | None) -> Any:
    """Return the MLflow run of a run folder: the one that it has, or a new one with parameters, tags and data sets.

    Args:
        client: an MlflowClient.
        run: the run's folder; its status keeps the id.
        settings: of the run.
        shown: the tracking server's address without secrets, as in the status.
        artifacts: the folder of a new experiment's artifacts; None where the server chooses it.

    Returns:
        An mlflow.entities.Run.
    """
    found = known_run(client, run, shown)
    if found is None:
        found = begin(client, run, settings, artifacts)
        run.set_tracking(mlflow_run=found.info.run_id, mlflow_uri=recorded_uri(shown))
    return found


def known_run(client: Any, run: RunFolder, shown: str) -> Any | None:
    """Return the MLflow run that a run's status names in a store; None where it names none, or the store lost it.

    Args:
        client: an MlflowClient.
        run: the run's folder.
        shown: the tracking server's address without secrets.
    """
    tracking = run.status().tracking
    run_id = tracking.mlflow_run
    if not run_id or tracking.mlflow_uri != recorded_uri(shown):
        return None
    return lookup(client, run_id)


def lookup(client: Any, run_id: str) -> Any | None:
    """Return a run of MLflow; None where its store does not have it, since it is a new one."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def begin(client: Any, run: RunFolder, settings: Settings, artifacts: Path | None) -> Any:
    """Begin an MLflow run with parameters, tags and data sets, or resume one that a kill cut short."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag, Param
    from mlflow.exceptions import MlflowException

    experiment_id = experiment_of(client, settings.tracking.experiment, artifacts)
    run_id = begun_run(client, experiment_id, run)
    values = parameters(settings)
    if run_id is None:
        start = round_stamp(run, 0) or None
        run_id = client.create_run(experiment_id, start, tags(run), run_name(settings)).info.run_id
    if any(value == reference_to_file(settings, key) for key, value in values.items()):
        client.log_artifact(run_id, str(run.path / "settings.yaml"))
    client.log_batch(run_id, params=[Param(allowed_name(key), value) for key, value in values.items()])
    inputs = [
        DatasetInput(Entity(one.name, one.digest, "local", one.source), [InputTag("mlflow.data.context", one.context)])
        for one in data_sets(run, settings)
    ]
    try:
        client.log_inputs(run_id, inputs)
    except MlflowException:  # another run logged the same data set at the same moment; now it is there
        client.log_inputs(run_id, inputs)
    return client.get_run(run_id)


def begun_run(client: Any, experiment_id: str, run: RunFolder) -> str | None:
    """Return the MLflow run of a run folder whose lineage does not name it, after a kill or in another store."""
    found = client.search_runs([experiment_id], f"tags.`{RUN_ID}` = '{run.lineage().id}'", max_results=1)
    if not found:
        return None
    return str(found[0].info.run_id)


def parameters(settings: Settings) -> dict[str, str]:
    """Return every setting by its path; for a value that is longer than MLflow keeps, say where it is."""
    found = {key: str(value) for key, value in flatten(settings).items()}
    for key, value in found.items():
        if len(value) > MAX_PARAMETER_CHARACTERS:
            found[key] = reference_to_file(settings, key)
    return found


def reference_to_file(settings: Settings, key: str) -> str:
    """Return the words that replace a setting that is too long."""
    return f"{len(str(flatten(settings)[key]))} characters: see {key} in settings.yaml"


def tags(run: RunFolder) -> dict[str, str]:
    """Return the lineage as tags: from a number in MLflow back to code, data and settings."""
    lineage = run.lineage()
    tracking = run.status().tracking
    found = {
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
        PARENT: tracking.mlflow_parent,
    }
    return {key: str(value) for key, value in found.items() if value is not None}
