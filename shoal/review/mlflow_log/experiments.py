"""Experiments of MLflow: each is created once, with a description and a view of the verdict, scores and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.review.mlflow_log.rounds import VERDICT, allowed_name, metric_name
from shoal.review.mlflow_log.trouble import check_experiment

NOTE = "mlflow.note.content"
"""Tag of a run or an experiment: its description, in Markdown."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of an experiment: its page opens with runs and charts instead of traces of language models."""
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

    if client.get_experiment_by_name(name) is None:
        location = None
        if artifacts is not None:
            location = (artifacts / name).as_uri()
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException:
            if client.get_experiment_by_name(name) is None:
                raise
    experiment = client.get_experiment_by_name(name)
    experiment_id = str(experiment.experiment_id)
    check_experiment(name, experiment.lifecycle_stage, experiment_id)
    for key, value in experiment_tags(experiment_id).items():
        if key not in experiment.tags:  # a tag that a user wrote stays
            set_experiment_tag(client, experiment_id, key, value)
    return experiment_id


def set_experiment_tag(client: Any, experiment_id: str, key: str, value: str) -> None:
    """Set a tag of an experiment, also where another run creates it at the same moment."""
    from mlflow.exceptions import MlflowException

    try:
        client.set_experiment_tag(experiment_id, key, value)
    except MlflowException:
        if client.get_experiment(experiment_id).tags.get(key) != value:
            client.set_experiment_tag(experiment_id, key, value)


def experiment_tags(experiment_id: str) -> dict[str, str]:
    """Return the first tags of an experiment of federated runs: its kind, its description, and its view."""
    description = (
        "Federated clustering and representation learning without labels. Each run is a training; nested runs belong "
        "to a comparison. [The runs with their scores and settings]"
        f"(#{view_page(experiment_id)})"
    )
    return {**KIND, NOTE: description, VIEW_TAG: view()}


def view_page(experiment_id: str) -> str:
    """Return the address of an experiment's view on MLflow's page, without what stands before #."""
    return f"/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def view() -> str:
    """Return the value of `VIEW_TAG`: columns for the verdict, what a night decided, scores and settings."""
    columns = [
        f"tags.`{VERDICT}`",
        f"tags.`{NIGHT_DECISION}`",
        *(f"metrics.`{metric_name(name)}`" for name in SCORES_SHOWN),
        *(f"params.`{allowed_name(key)}`" for key in SETTINGS_SHOWN),
        "attributes.`Dataset`",
    ]
    state = json.dumps({"selectedColumns": columns})
    return json.dumps({"name": "scores and settings", "createdAt": 0, "updatedAt": 0, "state": state})
