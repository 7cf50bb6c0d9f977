"""Experiments of MLflow: each is created once, with a description and a view of the verdict, scores and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from shoal.engine.settings import places
from shoal.review.mlflow_log.rounds import VERDICT, allowed_name, metric_name

_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://")
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


def artifact_folder(uri: str) -> Path | None:
    """Return where the files of a new experiment go: beside the embedded store, for databases without a server.

    MLflow's own default is a folder below the working directory, which differs from run to run.

    Args:
        uri: of the tracking store.

    Returns:
        None where a server chooses the folder.

    >>> artifact_folder("postgresql+psycopg2://me@host/mlflow").name, artifact_folder("http://host:5000")
    ('artifacts', None)
    """
    if not _DATABASE.match(uri):
        return None
    return places.mlflow_store() / "artifacts"


def experiment_of(client: Any, name: str) -> str:
    """Return the id of an experiment; create it where it is missing, even if two runs do so at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        folder = artifact_folder(client.tracking_uri)
        location = None if folder is None else (folder / name).as_uri()
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
