"""Final models in MLflow's registry: a version for each finished run, and the aliases that point to one.

    champion      the version to use: the first one, until the alias is moved; none if that waits for approval
    challenger    the newest version, as long as it is not the champion

A model is then loaded and served as `models:/NAME@champion`. `set_champion` moves that alias. MLflow's list of models
shows few aliases of a name, so that beside these there is only `previous` (see `champions`).

The champions of a registered name: which version has the alias, which ones had it before, by whom and why.

The tag `shoal.champions` of the registered model lists the versions that lead to the present champion, the present one
last; the alias `previous` points to the one that a rollback returns to. The tag `shoal.champion` of a version says who
made it the champion last, and why. A person who moves the alias on MLflow's page changes neither: the next command or
night follows the alias (`note_move_by_hand`).
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.engine.settings.run_settings import Settings
from shoal.engine.store.run_folder import RunFolder
from shoal.review.mlflow_log.model_card import model_card
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
    versions = [entry for entry in client.search_model_versions(f"run_id = '{run_id}'") if entry.name == name]
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


PREVIOUS = "previous"
"""Alias of the version that was the champion before; a rollback returns to it."""
CHAMPIONS = "shoal.champions"
MOVE = "shoal.champion"
PROMOTED = "promoted"
APPROVED = "approved"
ROLLED_BACK = "rolled back"
BY_HAND = "set in MLflow"
"""Kinds of moves: by a night, by `shoal model promote` or `rollback`, on MLflow's page."""


@dataclass(frozen=True)
class Move:
    """One move of the alias `champion`.

    Args:
        version: the version that got the alias.
        kind: what moved it (`PROMOTED` and the others).
        who: the user.
        why: the reason, in a sentence.
        at: the time, UTC, in ISO 8601.
    """

    version: str
    kind: str
    who: str
    why: str
    at: str


def champion_version(client: Any, name: str) -> str | None:
    """Return the version that has the alias `champion`; None where none has it, or no model has the name."""
    champions = [model.aliases.get(CHAMPION) for model in client.search_registered_models(f"name = '{name}'")]
    return str(champions[0]) if champions and champions[0] else None


def succession(client: Any, name: str) -> list[str]:
    """Return the champions that lead to the present one, the present one last; empty where there is none.

    An alias that a person set on MLflow's page follows the others, or takes back those since that version.

    Args:
        client: an MlflowClient.
        name: of the registered model.
    """
    champion = champion_version(client, name)
    if champion is None:
        return []
    known = _recorded(client, name)
    while known and known[-1] != champion and champion in known:
        known.pop()
    if champion not in known:
        known.append(champion)
    return known


def last_move(client: Any, name: str, version: str) -> Move | None:
    """Return how a version became the champion last; None where nobody recorded it."""
    told = client.get_model_version(name, version).tags.get(MOVE)
    if told is None:
        return None
    return Move(version, **json.loads(told))


def note_move_by_hand(client: Any, name: str) -> Move | None:
    """Follow an alias that a person moved on MLflow's page; return the move if it is to a version that is new there."""
    champions = succession(client, name)
    if not champions:  # perhaps no model has the name yet
        return None
    known = _recorded(client, name)
    if not known or champions == known:
        return None
    if champions[-1] in known or last_move(client, name, champions[-1]) is not None:
        _keep(client, name, champions)
        set_champion(client, name, champions[-1])  # it may be the challenger that was waiting
        return None
    return _move(client, name, champions, BY_HAND, "somebody on MLflow's page", "no reason was given")


def make_champion(client: Any, name: str, version: str, kind: str, who: str, why: str) -> Move | None:
    """Give the alias `champion` to a version, and record why; the same again changes nothing.

    Args:
        client: an MlflowClient.
        name: of the registered model.
        version: of that name.
        kind: `PROMOTED` or `APPROVED`.
        who, why: as in `Move`.

    Returns:
        The move; None where the version is the recorded champion already.
    """
    champions = succession(client, name)
    if champions[-1:] != [version]:
        champions.append(version)
    elif last_move(client, name, version) is not None:
        return None
    return _move(client, name, champions, kind, who, why)


def return_to_previous(client: Any, name: str, who: str, why: str) -> Move | None:
    """Give the alias `champion` back to the version that had it before; return None where none had it."""
    champions = succession(client, name)[:-1]
    return _move(client, name, champions, ROLLED_BACK, who, why) if champions else None


def _recorded(client: Any, name: str) -> list[str]:
    return str(client.get_registered_model(name).tags.get(CHAMPIONS, "")).split()


def _move(client: Any, name: str, champions: list[str], kind: str, who: str, why: str) -> Move:
    """Make the last of some champions the present one; the alias comes between the records, see `succession`."""
    move = Move(champions[-1], kind, who, why, datetime.now(UTC).isoformat(timespec="milliseconds"))
    _keep(client, name, champions)
    set_champion(client, name, move.version)
    told = {key: text for key, text in asdict(move).items() if key != "version"}
    client.set_model_version_tag(name, move.version, MOVE, json.dumps(told))
    return move


def _keep(client: Any, name: str, champions: list[str]) -> None:
    """Write the list of champions, and point the alias `previous` to the one before the last."""
    client.set_registered_model_tag(name, CHAMPIONS, " ".join(champions))
    if len(champions) > 1:
        client.set_registered_model_alias(name, PREVIOUS, champions[-2])
    elif PREVIOUS in client.get_registered_model(name).aliases:
        client.delete_registered_model_alias(name, PREVIOUS)
