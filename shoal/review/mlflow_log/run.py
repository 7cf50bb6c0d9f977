"""A run on MLflow's page: its experiment, name, lineage, data sets and settings.

The names of runs in MLflow: method and data, the settings that a person chose, then the rest of the title.

Experiments of MLflow: each is created once, with a description and a view of the verdict, scores and settings.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from shoal.engine.settings.defaults import changed_settings
from shoal.engine.settings.run_settings import Settings, flatten
from shoal.engine.store.relocation import stored_path
from shoal.engine.store.run_folder import RunFolder
from shoal.methods.registry import METHODS
from shoal.review.mlflow_log.embedded_store import recorded_uri
from shoal.review.mlflow_log.rounds import VERDICT, allowed_name, metric_name, round_stamp

PARENT = "mlflow.parentRunId"
"""Tag of a run: the id of the run that it is nested under."""
RUN_ID = "shoal.run_id"
"""Tag of a run: the number in its lineage, the same wherever its folder lies."""
MAX_PARAMETER_CHARACTERS = 6000
"""Characters of a parameter's value that MLflow keeps."""


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
    from mlflow.entities import Param

    experiment_id = experiment_of(client, settings.tracking.experiment, artifacts)
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
        PARENT: tracking.mlflow_parent,
        **{f"shoal.site.{allowed_name(name)}_sha256": site.digest for name, site in lineage.sites.items()},
    }
    return {key: str(value) for key, value in values.items() if value is not None}


SEPARATOR = " · "
MAX_NAME_CHARACTERS = 250
"""Characters of a run's name that MLflow's tables hold."""
MAX_VALUE_CHARACTERS = 24
"""Characters of a setting's value in a name."""
IN_TITLE = ("partition.clients", "partition.transform", "seed")
"""Settings that are in every name, beside method, data and partition scheme."""
PARAMETER_OF = {"dirichlet": "beta", "labels_per_client": "labels", "majority": "p", "by_column": "column"}
"""The parameter of a partition scheme that is in every name."""
NOT_COMPUTED = ("tracking.", "checkpoint.", "workers.", "choose.")
"""Sections that say where a run is done and shown, or how a setting was chosen: not what is computed."""
OF_TRAINING = ("local.", "augment.")
"""Sections that a method does not read whose clients take no gradient steps."""


def run_name(settings: Settings) -> str:
    """Return the name of a run.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> run_name(make_settings({"method": "fedcc", "local": {"lr": 0.001}, "rounds": 5}))
    'fedcc digits · lr 0.001 · rounds 5 · iid x5 seed 0'
    """
    chosen = chosen_settings(settings)
    if not chosen:
        return title(settings)
    words = [key.rpartition(".")[2] for key in chosen]
    labels = [key if words.count(word) > 1 else word for key, word in zip(chosen, words, strict=True)]
    middle = SEPARATOR.join(f"{label} {value}" for label, value in zip(labels, chosen.values(), strict=True))
    front = f"{settings.method.name} {settings.data.name}"
    back = f"{partition_title(settings)} seed {settings.seed}"
    room = max(0, MAX_NAME_CHARACTERS - len(front) - len(back) - 2 * len(SEPARATOR))
    return shorten(SEPARATOR.join((front, shorten(middle, room), back)))


def title(settings: Settings) -> str:
    """Return the title of a run: method, data, partition, seed.

    >>> from shoal.engine.settings.run_settings import make_settings
    >>> title(make_settings({"method": "fedcc", "partition": {"kind": "dirichlet", "beta": 0.3}}))
    'fedcc digits dirichlet(0.3) x5 seed 0'
    """
    return shorten(f"{settings.method.name} {settings.data.name} {partition_title(settings)} seed {settings.seed}")


def partition_title(settings: Settings) -> str:
    """Return the scheme of a partition, with its parameter and the number of clients."""
    partition = settings.partition
    words = str(partition.kind)
    if partition.kind in PARAMETER_OF:
        words += f"({getattr(partition, PARAMETER_OF[partition.kind])})"
    if partition.clients:
        words += f" x{partition.clients}"
    transform = getattr(partition, "transform", "none")
    if transform != "none":
        words += f"+{transform}"
    return words


def chosen_settings(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from their defaults and that the title does not say, in words for a name.

    Settings that the method does not read are left out.
    """
    parameter = f"partition.{PARAMETER_OF.get(settings.partition.kind, '')}"
    trains = METHODS[settings.method.name].trains
    chosen = {}
    for key, value in sorted(changed_settings(settings).items()):
        if key in IN_TITLE or key == parameter or key.startswith(NOT_COMPUTED):
            continue
        if trains or not key.startswith(OF_TRAINING):
            chosen[key] = value_in_name(value)
    return chosen


def value_in_name(value: Any) -> str:
    """Return a setting's value for a name: numbers without trailing zeros; of a long value its digest."""
    text = str(value)
    if text in ("None", "True", "False"):
        return text.lower()
    if len(text) > MAX_VALUE_CHARACTERS:
        return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def shorten(text: str, characters: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text cut to a number of characters: databases refuse longer names, and the whole run with them."""
    if len(text) > characters:
        return f"{text[: characters - 1]}…"
    return text


NOTE = "mlflow.note.content"
"""Tag of a run or an experiment: its description, in Markdown."""
NIGHT_DECISION = "shoal.night.decision"
"""Tag of a night's run and of the version of its model: what the night decided about it."""
VIEW = "shoal"
"""Key of a saved view of an experiment's page."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""Tag of an experiment: the saved view."""
SCORES_SHOWN = ("acc", "ari", "probe", "neighbour_agreement", "silhouette")
"""Scores with columns in the view; a run has those of its method and data."""
SETTINGS_SHOWN = ("method.name", "data.name", "partition.kind", "partition.clients", "seed")
"""Settings with columns in the view."""


def experiment_of(client: Any, name: str, artifacts: Path | None) -> str:
    """Return the id of an experiment; create it where it is missing, even if two runs do so at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None if artifacts is None else (artifacts / name).as_uri()
        try:
            return str(client.create_experiment(name, location, experiment_tags()))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return str(experiment.experiment_id)


def experiment_tags() -> dict[str, str]:
    """Return the first tags of an experiment: its description, its view, and its kind, by which its page shows runs."""
    columns = [
        f"tags.`{VERDICT}`",
        f"tags.`{NIGHT_DECISION}`",
        *(f"metrics.`{metric_name(name)}`" for name in SCORES_SHOWN),
        *(f"params.`{allowed_name(key)}`" for key in SETTINGS_SHOWN),
        "attributes.`Dataset`",
    ]
    state = json.dumps({"selectedColumns": columns})
    return {
        "mlflow.experimentKind": "custom_model_development",
        NOTE: "Federated clustering and representation learning without labels; nested runs belong to a comparison.",
        VIEW_TAG: json.dumps({"name": "scores and settings", "createdAt": 0, "updatedAt": 0, "state": state}),
    }


def view_page(experiment_id: str) -> str:
    """Return the address of an experiment's view on MLflow's page, without what stands before #."""
    return f"/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
