"""Names for final models: a version in MLflow's registry for each finished run, and the aliases that point to one.

A model is then loaded and served as `models:/NAME@newest` or `models:/NAME@champion`.
"""

from __future__ import annotations

from typing import Any

from engine.run_folder import RunFolder
from engine.settings import Settings

NEWEST = "newest"
"""Alias of the version that was registered last; `latest` is MLflow's own word."""
CHAMPION = "champion"
"""Alias of the version to use: the first one, until it is moved by `tracking.champion` or on MLflow's page."""


def registered_name(settings: Settings) -> str | None:
    """The name that the run's model is registered under; None where it is not to be."""
    wanted = settings.tracking.register_as
    if wanted == "none":
        return None
    return f"shoal-{settings.method.name}-{settings.data.name}" if wanted == "auto" else wanted


def register(run: RunFolder, settings: Settings, client: Any, run_id: str) -> str | None:
    """Register the model that the MLflow run has logged, once, and move its aliases.

    Args:
        run: the run's folder; a version, or why there is none, becomes an event of it.
        settings: of the run.
        client: an MlflowClient.
        run_id: the MLflow run.

    Returns:
        The version; None where the run's settings want none, there is no model, or the registry refused it.
    """
    from mlflow.exceptions import MlflowException

    name = registered_name(settings)
    if name is None or not client.list_artifacts(run_id, "model"):
        return None
    try:
        known = [each for each in client.search_model_versions(f"run_id = '{run_id}'") if each.name == name]
        if known:
            return str(known[0].version)
        return _new_version(run, settings, client, run_id, name)
    except MlflowException as error:
        # A tracking server without a registry: the run and its logged model are as good without a name.
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        run.event("model_not_registered", message=f"MLflow did not register the model as {name!r}: {first[:200]}")
        return None


def _new_version(run: RunFolder, settings: Settings, client: Any, run_id: str, name: str) -> str:
    if not client.search_registered_models(f"name = '{name}'"):
        about = f"Final models of {settings.method.name} on {settings.data.name}, a version a finished run."
        client.create_registered_model(name, description=about)
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    made = client.create_model_version(
        name,
        source,
        run_id,
        tags={"shoal.run": run.name, "shoal.method": settings.method.name, "shoal.data": settings.data.name},
        description=f"The model after the last round of run {run.name}.",
    )
    client.set_registered_model_alias(name, NEWEST, made.version)
    if settings.tracking.champion or CHAMPION not in client.get_registered_model(name).aliases:
        client.set_registered_model_alias(name, CHAMPION, made.version)
    run.event("model_registered", message=f"models:/{name}/{made.version}", name=name, version=str(made.version))
    return str(made.version)
