"""Final models in MLflow's registry: a version for each finished run, and the aliases that point to one.

    champion      the version to use: the first one, until the alias is moved
    challenger    the newest version, as long as it is not the champion

A model is then loaded and served as `models:/NAME@champion`. `set_champion` moves that alias. MLflow's list of models
shows few aliases of a name, so that beside these there is only `previous` (see `champions`).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.model_card import model_card
from shoal.review.mlflow_log.models import MODEL, is_ready, models_of
from shoal.review.mlflow_log.own_texts import digest, is_own
from shoal.review.mlflow_log.trouble import reason_of
from shoal.review.results.attempts import attempt

CHAMPION = "champion"
"""Alias of the version to use: the first one, until a night, `set_champion` or a user of MLflow's page moves it."""
CHALLENGER = "challenger"
"""Alias of the newest version where that is not the champion."""
ALIASED = "shoal.aliased"
"""Tag of a version whose aliases were moved."""
OLD_NEWEST = "newest"
"""Alias that older versions of Shoal gave to the version that was registered last; the next version removes it."""

CARD_WRITTEN = "mlflow.shoal.card"
"""Tag of a run: digest of the card that Shoal wrote for its model; pages would show such a tag of the version."""


def registered_name(settings: Settings) -> str | None:
    """Return the name that the run's model is registered under; None where it is not registered."""
    name = settings.tracking.register_as
    if name == "none":
        return None
    if name == "auto":
        return f"shoal-{settings.method.name}-{settings.data.name}"
    return name


def register(run: RunFolder, settings: Settings, client: Any, run_id: str) -> str | None:
    """Register the model of an MLflow run, unless it is registered, and move its aliases.

    Args:
        run: the run's folder; an event of it names the version, or says why there is none.
        settings: of the run.
        client: an MlflowClient.
        run_id: the MLflow run.

    Returns:
        The version; None where the settings want none, there is no model, or the registry refused it.
    """
    from mlflow.exceptions import MlflowException

    name = registered_name(settings)
    if name is None:
        return None
    try:
        versions = [each for each in client.search_model_versions(f"run_id = '{run_id}'") if each.name == name]
        if versions:
            version: str | None = str(versions[0].version)
        else:
            version = _new_version(run, settings, client, run_id, name)
        if version is not None:
            write_card(run, settings, client, client.get_model_version(name, version))
            _point(client, name, version)
        return version
    except MlflowException as error:
        # A tracking server without a registry: the run and its logged model are complete without a name.
        why = reason_of(error, settings)
        run.event("model_not_registered", message=f"MLflow did not register the model as {name!r}: {why}")
        return None


def write_card(run: RunFolder, settings: Settings, client: Any, version: Any) -> None:
    """Describe a version by its card (`shoal.review.mlflow_log.model_card`), unless a user has described it.

    Args:
        run: the run's folder.
        settings: of the run.
        client: an MlflowClient.
        version: of the registered model, in MLflow.
    """
    found = client.get_run(version.run_id)
    card = attempt(run, "the model card", lambda: model_card(run, settings, found))
    if card is None:
        return
    present = version.description or ""
    tags = found.data.tags
    own = is_own(present, tags, CARD_WRITTEN) or present in (card, first_description(run))
    if own and present != card:
        client.update_model_version(version.name, version.version, card)
    if own and tags.get(CARD_WRITTEN) != digest(card):
        client.set_tag(version.run_id, CARD_WRITTEN, digest(card))


def first_description(run: RunFolder) -> str:
    """Return the description of a version that has no card yet."""
    return f"The model after the last round of run {run.name}."


def set_champion(client: Any, name: str, version: str) -> None:
    """Make a version the champion. If it was the challenger, there is none until the next version is registered.

    Args:
        client: an MlflowClient.
        name: of the registered model.
        version: the version.

    Raises:
        MlflowException: there is no such version.
    """
    client.get_model_version(name, version)  # refuses one that is not there, before anything is moved
    before = _aliases(client, name)
    client.set_registered_model_alias(name, CHAMPION, version)
    if before.get(CHALLENGER) == str(version):
        client.delete_registered_model_alias(name, CHALLENGER)


def _aliases(client: Any, name: str) -> dict[str, str]:
    """Return the versions that the aliases of a name point to."""
    return {alias: str(version) for alias, version in client.get_registered_model(name).aliases.items()}


def _point(client: Any, name: str, version: str) -> None:
    """Move the aliases to a new version; do nothing for a version whose aliases were moved before.

    Its tag is set last, so that after a kill in between all of them are moved again.
    """
    aliases = _aliases(client, name)
    if ALIASED in client.get_model_version(name, version).tags or int(aliases.get(OLD_NEWEST, 0)) >= int(version):
        return
    if CHAMPION not in aliases:
        client.set_registered_model_alias(name, CHAMPION, version)
    elif int(version) > max(int(aliases[CHAMPION]), int(aliases.get(CHALLENGER, 0))):
        client.set_registered_model_alias(name, CHALLENGER, version)
    if OLD_NEWEST in aliases:
        client.delete_registered_model_alias(name, OLD_NEWEST)
    client.set_model_version_tag(name, version, ALIASED, "true")


def _new_version(run: RunFolder, settings: Settings, client: Any, run_id: str, name: str) -> str | None:
    from mlflow.exceptions import MlflowException

    model = models_of(client, client.get_run(run_id)).get(MODEL)
    if model is None or not is_ready(model):
        return None
    if not client.search_registered_models(f"name = '{name}'"):
        about = f"Final models of {settings.method.name} on {settings.data.name}, one version for each finished run."
        with contextlib.suppress(MlflowException):  # another run created it at the same moment
            client.create_registered_model(name, description=about)
    made = client.create_model_version(
        name,
        model.artifact_location,
        run_id,
        tags={"shoal.run": run.name, "shoal.method": settings.method.name, "shoal.data": settings.data.name},
        description=first_description(run),
        model_id=model.model_id,
    )
    # By this tag MLflow's page shows the version beside the model; a server sets it itself.
    versions = [{"name": name, "version": str(made.version)}]
    client.set_logged_model_tags(model.model_id, {"mlflow.modelVersions": json.dumps(versions)})
    run.event("model_registered", message=f"models:/{name}/{made.version}", name=name, version=str(made.version))
    return str(made.version)
