"""A run on MLflow's page: its experiment, name, lineage, data sets, settings, and a description in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.engine.settings import places
from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.embedded_store import is_kept_uri, kept_uri
from shoal.review.mlflow_log.moved_store import RUN_FOLDER
from shoal.review.mlflow_log.rounds import allowed_name, metric_name, round_stamp
from shoal.review.mlflow_log.trouble import check_experiment
from shoal.review.results.attempts import attempted
from shoal.review.results.summary import summary_of

RUN_ID = "shoal.run_id"
"""Tag of a run: the number in its lineage, the same wherever its folder lies."""
NOTE = "mlflow.note.content"
"""Tag of a run or an experiment: its description, in Markdown."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment: its page opens with runs and charts instead of traces of language models."""
MAX_NAME_CHARACTERS = 250
"""Characters of a run's name that MLflow's tables hold."""
MAX_PARAMETER_CHARACTERS = 6000
"""Characters of a parameter's value that MLflow keeps."""
SCORE_COLUMNS = ("acc", "nmi", "knn", "silhouette", "loss")
"""The numbers that have columns in the view `VIEW` of an experiment."""
VIEW = "shoal"
"""Key of a saved view of the experiment's page."""
PARAMETERS = ("method.name", "data.name", "partition.kind", "partition.clients", "seed")
"""The settings that have columns in the same view."""


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


def title(settings: Settings) -> str:
    """Return the name of a run: method, data, partition, seed.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> title(make_settings({"method": "fedcc", "partition": {"kind": "dirichlet", "beta": 0.3}}))
    'fedcc digits dirichlet(0.3) x5 seed 0'
    """
    name = f"{settings.method.name} {settings.data.name} {partition_title(settings)} seed {settings.seed}"
    if len(name) > MAX_NAME_CHARACTERS:  # SQLite takes any length, but other databases refuse the whole run
        name = f"{name[: MAX_NAME_CHARACTERS - 1]}…"
    return name


def partition_title(settings: Settings) -> str:
    """Return the scheme of a partition, with its parameter and the number of clients."""
    partition = settings.partition
    parameter_of = {"dirichlet": "beta", "labels_per_client": "labels", "majority": "p", "by_column": "column"}
    words = str(partition.kind)
    if partition.kind in parameter_of:
        words += f"({getattr(partition, parameter_of[partition.kind])})"
    if partition.clients:
        words += f" x{partition.clients}"
    transform = getattr(partition, "transform", "none")
    if transform != "none":
        words += f"+{transform}"
    return words


def mlflow_run(client: Any, run: RunFolder, settings: Settings, shown: str, artifacts: Path | None) -> Any:
    """Return the MLflow run of a run folder: the one that it has, or a new one with parameters, tags and data sets.

    Args:
        client: an MlflowClient.
        run: the run's folder; its lineage keeps the id.
        settings: of the run.
        shown: the tracking server's address without secrets, as in the lineage.
        artifacts: the folder of a new experiment's artifacts; None where the server chooses it.

    Returns:
        An mlflow.entities.Run.
    """
    found = known_run(client, run, shown, places.mlflow_store())
    if found is None:
        found = begin(client, run, settings, artifacts)
        run.set_lineage(mlflow_run=found.info.run_id, mlflow_uri=kept_uri(shown, places.mlflow_store()))
    return found


def known_run(client: Any, run: RunFolder, shown: str, store: Path) -> Any | None:
    """Return the MLflow run that a run's lineage names in a store; None where it names none, or the store lost it.

    Args:
        client: an MlflowClient.
        run: the run's folder.
        shown: the tracking server's address without secrets.
        store: folder of the embedded store.
    """
    lineage = run.lineage()
    run_id = lineage.mlflow_run
    if not run_id or not is_kept_uri(lineage.mlflow_uri, shown, store):
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
    if run_id is None:
        start = round_stamp(run, 0) or None
        run_id = client.create_run(experiment_id, start, tags(run), title(settings)).info.run_id
    values = parameters(settings)
    if any(value == in_file(settings, key) for key, value in values.items()):
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
    candidates = client.search_runs([experiment_id], f"tags.`shoal.run` = '{run.name}'")
    ids = {run.lineage().id or "unknown", stored_path(run.path), str(run.path)}
    for each in candidates:
        if each.data.tags.get(RUN_ID, each.data.tags.get(RUN_FOLDER)) in ids:
            return str(each.info.run_id)
    return None


def parameters(settings: Settings) -> dict[str, str]:
    """Return every setting by its path; for a value that is longer than MLflow keeps, say where it is."""
    found = {key: str(value) for key, value in flatten(settings).items()}
    for key, value in found.items():
        if len(value) > MAX_PARAMETER_CHARACTERS:
            found[key] = in_file(settings, key)
    return found


def in_file(settings: Settings, key: str) -> str:
    """Return the words that replace a setting that is too long."""
    return f"{len(str(flatten(settings)[key]))} characters: see {key} in settings.yaml"


def tags(run: RunFolder) -> dict[str, str]:
    """Return the lineage as tags: from a number in MLflow back to code, data and settings."""
    lineage = run.lineage()
    found = {
        "shoal.run": run.name,
        RUN_ID: lineage.id,
        RUN_FOLDER: stored_path(run.path),
        "shoal.settings_sha256": lineage.settings_sha256,
        "shoal.data_sha256": lineage.data.digest,
        "shoal.data_dvc": lineage.data.dvc,
        "shoal.encoder": None if lineage.encoder is None else lineage.encoder.in_words(),
        "shoal.encoder_sha256": lineage.encoder_sha256 or None,
        "shoal.partition_sha256": lineage.partition.digest,
        "shoal.partition_dvc": lineage.partition.dvc,
        "shoal.git_commit": lineage.git.commit,
        "shoal.git_dirty": lineage.git.dirty,
        "shoal.prefect_flow_run": None if lineage.prefect is None else lineage.prefect.flow_run,
        # The columns Source and Version of MLflow's page.
        "mlflow.source.name": run.name,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": lineage.git.commit,
        "mlflow.parentRunId": lineage.mlflow_parent,
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def experiment_of(client: Any, name: str, artifacts: Path | None) -> str:
    """Return the id of an experiment; create it where it is missing, even if two runs do so at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None
        if artifacts is not None:
            location = (artifacts / name).as_uri()
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
        experiment = client.get_experiment_by_name(name)
    experiment_id = str(experiment.experiment_id)
    check_experiment(name, experiment.lifecycle_stage, experiment_id)
    complete_tags(client, experiment)
    return experiment_id


def complete_tags(client: Any, experiment: Any) -> None:
    """Set the tags that an experiment does not have yet."""
    from mlflow.exceptions import MlflowException

    experiment_id = str(experiment.experiment_id)
    for key, value in experiment_tags(experiment_id).items():
        if key not in experiment.tags:  # a tag that a user wrote stays
            try:
                client.set_experiment_tag(experiment_id, key, value)
            except MlflowException:
                if key not in client.get_experiment(experiment_id).tags:  # otherwise another run wrote it just now
                    raise


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """Return the tags of an experiment of federated runs: its kind, description, main metric and a view.

    The view is one of MLflow's saved views: columns for scores and the settings that tell runs apart.
    """
    columns = [f"metrics.`{metric_name(name)}`" for name in SCORE_COLUMNS] + [f"params.`{key}`" for key in PARAMETERS]
    state = {"selectedColumns": ["attributes.`Dataset`", *columns], "useGroupedValuesInCharts": True}
    view = {"name": "scores and settings", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    description = (
        "Federated clustering and representation learning without labels. Each run is a training; nested runs belong "
        "to a study. [The runs with their scores and settings]"
        f"(#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW})"
    )
    return {
        **KIND,
        NOTE: description,
        "mlflow.experiment.primaryMetric.name": metric_name("acc"),
        "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view),
    }


def describe(run: RunFolder, found: Any, *, report: bool) -> dict[str, str]:
    """Return the tag that describes in two sentences the task and the outcome of a run, and links its report.

    Args:
        run: the run's folder.
        found: the MLflow run.
        report: whether MLflow has the report.

    Returns:
        No tag where there is no summary, or where a user wrote a description.
    """
    summary = attempted(run, "the description in MLflow", lambda: summary_of(run))
    if summary is None:
        return {}
    present = found.data.tags.get(NOTE, "")
    if present and not present.startswith(summary.task[:20]):
        return {}
    text = f"{summary.task} {summary.outcome}"
    if report:
        info = found.info
        text += f"\n\n[Report](#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/report.html)"
    if text == present:
        return {}
    return {NOTE: text}
