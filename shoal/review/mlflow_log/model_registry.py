"""Final models in MLflow's registry: a version for each finished run, and the aliases that point to one.

    champion      the version to use: the first one, until the alias is moved; none if that waits for approval
    challenger    the newest version, as long as it is not the champion

A model is then loaded and served as `models:/NAME@champion`. `set_champion` moves that alias. MLflow's list of models
shows few aliases of a name, so that beside these there is only `previous` (see `champions`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.descriptions import model_card
from shoal.review.mlflow_log.models import MODEL, is_ready, models_of
from shoal.review.results.stable_names import DECIDED

CHAMPION = "champion"
"""Alias of the version to use: the first one, until a night, `set_champion` or a user of MLflow's page moves it."""
CHALLENGER = "challenger"
"""Alias of the newest version where that is not the champion."""


def registered_name(settings: Settings) -> str | None:
    """Return the name that the run's model is registered under; None where it is not registered."""
    name = settings.tracking.register_as
    if name == "none":
        return None
    if name == "auto":
        return f"shoal-{settings.method.name}-{settings.data.name}"
    return name


def register(run: RunFolder, settings: Settings, client: Any, run_id: str) -> str | None:
    """Register the model of an MLflow run with its card, unless it is registered, and move aliases to it.

    A version whose description is empty gets the card; another description stays.

    Args:
        run: the run's folder; an event of it names the version.
        settings: of the run.
        client: an MlflowClient.
        run_id: the MLflow run.

    Returns:
        The version; None where the settings want none or there is no model.
    """
    name = registered_name(settings)
    if name is None:
        return None
    logged = client.get_run(run_id)
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    version = versions[0] if versions else _new_version(run, settings, client, logged, name)
    if version is None:
        return None
    if not version.description:
        client.update_model_version(name, version.version, model_card(run, settings))
    return str(version.version)


def set_champion(client: Any, name: str, version: str) -> None:
    """Make a version the champion. If it was the challenger, there is none until the next version is registered.

    Args:
        client: an MlflowClient.
        name: of the registered model.
        version: the version.

    Raises:
        MlflowException: there is no such version.
    """
    before = client.get_registered_model(name).aliases
    client.set_registered_model_alias(name, CHAMPION, version)
    if str(before.get(CHALLENGER)) == str(version):
        client.delete_registered_model_alias(name, CHALLENGER)


def _new_version(run: RunFolder, settings: Settings, client: Any, logged: Any, name: str) -> Any | None:
    """Register the final model of an MLflow run; return its version, None where it has no complete model."""
    from mlflow.exceptions import MlflowException

    model = models_of(client, logged).get(MODEL)
    if model is None or not is_ready(model):
        return None
    if not client.search_registered_models(f"name = '{name}'"):
        about = f"Final models of {settings.method.name} on {settings.data.name}, one version for each finished run."
        with contextlib.suppress(MlflowException):  # another run created it at the same moment
            client.create_registered_model(name, description=about)
    tags = {"shoal.run": run.name, "shoal.method": settings.method.name, "shoal.data": settings.data.name}
    version = client.create_model_version(
        name, model.artifact_location, logged.info.run_id, tags=tags, model_id=model.model_id
    )
    aliases = client.get_registered_model(name).aliases
    waits = any(event.facts.get("waits") for event in run.events() if event.kind == DECIDED)
    alias = CHALLENGER if CHAMPION in aliases or waits else CHAMPION
    client.set_registered_model_alias(name, alias, version.version)
    run.event("model_registered", message=f"models:/{name}/{version.version}", name=name, version=str(version.version))
    return version
