"""A run as MLflow's page shows it: experiment, name, lineage, data sets, every setting, and a description in words."""

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
"""Tag of an experiment: its page opens with runs and charts, and not with traces of language models."""
LONGEST_NAME = 250
"""Characters of a run's name that MLflow's tables hold."""
LONGEST = 6000
"""Characters of a parameter's value that MLflow keeps."""
SHOWN = ("acc", "nmi", "knn", "silhouette", "loss")
"""The numbers that the view `VIEW` of an experiment has columns for."""
VIEW = "shoal"
"""Key of a view of the experiment's page that is saved with the experiment."""
PARAMETERS = ("method.name", "data.name", "partition.kind", "partition.clients", "seed")
"""The settings that the same view has columns for."""


@dataclass(frozen=True)
class DataSet:
    """A data set as MLflow knows it.

    Attributes:
        name, digest: by which metrics name it.
        source: its folder.
        context: data or partition.
    """

    name: str
    digest: str
    source: str
    context: str


def data_sets(run: RunFolder, settings: Settings) -> tuple[DataSet, DataSet]:
    """The prepared data of a run, and their partition."""
    lineage = run.lineage()
    name = settings.data.name
    data = DataSet(f"{name} data", lineage.data.digest[:36], lineage.data.folder, "data")
    partition = DataSet(f"{name} partition", lineage.partition.digest[:36], lineage.partition.folder, "partition")
    return data, partition


def title(settings: Settings) -> str:
    """What people call a run: method, data, partition, seed.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> title(make_settings({"method": "fedcc", "partition": {"kind": "dirichlet", "beta": 0.3}}))
    'fedcc digits dirichlet(0.3) x5 seed 0'
    """
    told = f"{settings.method.name} {settings.data.name} {partition_title(settings)} seed {settings.seed}"
    # SQLite takes any length, other databases refuse the whole run.
    return told if len(told) <= LONGEST_NAME else f"{told[: LONGEST_NAME - 1]}…"


def partition_title(settings: Settings) -> str:
    """The scheme of a partition, with its own number and how many clients there are."""
    partition = settings.partition
    own = {"dirichlet": "beta", "labels_per_client": "labels", "majority": "p", "by_column": "column"}
    given = getattr(partition, own[partition.kind]) if partition.kind in own else None
    clients = f" x{partition.clients}" if partition.clients else ""
    transform = getattr(partition, "transform", "none")
    planted = f"+{transform}" if transform != "none" else ""
    return f"{partition.kind}{f'({given})' if given is not None else ''}{clients}{planted}"


def mlflow_run(client: Any, run: RunFolder, settings: Settings, shown: str, artifacts: Path | None) -> Any:
    """The MLflow run of a run folder: the one that it has, or a new one with parameters, lineage tags and data sets.

    Args:
        client: an MlflowClient.
        run: the run's folder; its lineage keeps the id.
        settings: of the run.
        shown: the tracking server's address without secrets, by which the lineage knows it.
        artifacts: the folder of a new experiment's artifacts; None: where the server keeps them.

    Returns:
        An mlflow.entities.Run.
    """
    lineage = run.lineage()
    known = lineage.mlflow_run if is_kept_uri(lineage.mlflow_uri, shown, places.mlflow_store()) else None
    found = lookup(client, known) if known else None
    if found is None:
        found = begin(client, run, settings, artifacts)
        run.set_lineage(mlflow_run=found.info.run_id, mlflow_uri=kept_uri(shown, places.mlflow_store()))
    return found


def lookup(client: Any, run_id: str) -> Any | None:
    """A run of MLflow; None where its store does not have it, since it is a new one."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def begin(client: Any, run: RunFolder, settings: Settings, artifacts: Path | None) -> Any:
    """A new MLflow run with parameters, tags and data sets; one that was begun and not kept in mind is gone on with."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag, Param
    from mlflow.exceptions import MlflowException

    experiment_id = experiment_of(client, settings.tracking.experiment, artifacts)
    run_id = begun(client, experiment_id, run)
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
    except MlflowException:  # another run named the same data set at the same moment; now it is there
        client.log_inputs(run_id, inputs)
    return client.get_run(run_id)


def begun(client: Any, experiment_id: str, run: RunFolder) -> str | None:
    """The MLflow run of a run folder whose lineage does not name it: a kill came in between, or another store did."""
    named = client.search_runs([experiment_id], f"tags.`shoal.run` = '{run.name}'")
    own = {run.lineage().id or "unknown", stored_path(run.path), str(run.path)}
    here = [each for each in named if each.data.tags.get(RUN_ID, each.data.tags.get(RUN_FOLDER)) in own]
    return str(here[0].info.run_id) if here else None


def parameters(settings: Settings) -> dict[str, str]:
    """Every setting by its path; of a value that is longer than MLflow keeps, where it is."""
    flat = {key: str(value) for key, value in flatten(settings).items()}
    return {key: value if len(value) <= LONGEST else in_file(settings, key) for key, value in flat.items()}


def in_file(settings: Settings, key: str) -> str:
    """What stands for a setting that is too long."""
    return f"{len(str(flatten(settings)[key]))} characters: see {key} in settings.yaml"


def tags(run: RunFolder) -> dict[str, str]:
    """The lineage as tags: from a number in MLflow back to code, data and settings."""
    lineage = run.lineage()
    found = {
        "shoal.run": run.name,
        RUN_ID: lineage.id,
        RUN_FOLDER: stored_path(run.path),
        "shoal.settings_sha256": lineage.settings_sha256,
        "shoal.data_sha256": lineage.data.digest,
        "shoal.data_dvc": lineage.data.dvc,
        "shoal.partition_sha256": lineage.partition.digest,
        "shoal.partition_dvc": lineage.partition.dvc,
        "shoal.git_commit": lineage.git.commit,
        "shoal.git_dirty": lineage.git.dirty,
        "shoal.prefect_flow_run": None if lineage.prefect is None else lineage.prefect.flow_run,
        # MLflow's own columns Source and Version.
        "mlflow.source.name": run.name,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": lineage.git.commit,
        "mlflow.parentRunId": lineage.mlflow_parent,
    }
    return {key: str(value) for key, value in found.items() if value is not None}


def experiment_of(client: Any, name: str, artifacts: Path | None) -> str:
    """The id of an experiment, made where it is not there; two runs may want it at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        where = (artifacts / name).as_uri() if artifacts is not None else None
        try:
            client.create_experiment(name, artifact_location=where)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
        experiment = client.get_experiment_by_name(name)
    experiment_id = str(experiment.experiment_id)
    check_experiment(name, experiment.lifecycle_stage, experiment_id)
    for key, value in experiment_tags(experiment_id).items():
        if key not in experiment.tags:  # what a person wrote there stays
            try:
                client.set_experiment_tag(experiment_id, key, value)
            except MlflowException:
                if key not in client.get_experiment(experiment_id).tags:  # else another run wrote it just now
                    raise
    return experiment_id


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """What makes an experiment's page one of federated runs: its kind, description, main metric and a view.

    The view is one of MLflow's saved views: columns for scores and the settings that tell runs apart.
    """
    columns = [f"metrics.`{metric_name(name)}`" for name in SHOWN] + [f"params.`{key}`" for key in PARAMETERS]
    state = {"selectedColumns": ["attributes.`Dataset`", *columns], "useGroupedValuesInCharts": True}
    view = {"name": "scores and settings", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    about = (
        "Federated clustering and representation learning without labels, a run a training, a nested run a member of a "
        f"study. [The runs with their scores and settings](#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW})"
    )
    return {
        **KIND,
        NOTE: about,
        "mlflow.experiment.primaryMetric.name": metric_name("acc"),
        "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view),
    }


def describe(run: RunFolder, found: Any, *, report: bool) -> dict[str, str]:
    """The tag that says in two sentences what was asked of a run and what came out, and links its report.

    Args:
        run: the run's folder.
        found: the MLflow run.
        report: whether MLflow has the report.

    Returns:
        No tag where nothing can be said, or where a person wrote a description.
    """
    summary = attempted(run, "the description in MLflow", lambda: summary_of(run))
    if summary is None:
        return {}
    written = found.data.tags.get(NOTE, "")
    if written and not written.startswith(summary.asked[:20]):
        return {}
    text = f"{summary.asked} {summary.found}"
    if report:
        info = found.info
        text += f"\n\n[Report](#/experiments/{info.experiment_id}/runs/{info.run_id}/artifacts/report.html)"
    return {} if text == written else {NOTE: text}
