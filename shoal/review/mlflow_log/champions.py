"""The champions of a registered name: which version has the alias, which ones had it before, by whom and why.

The tag `shoal.champions` of the registered model lists the versions that lead to the present champion, the present one
last; the alias `previous` points to the one that a rollback returns to. The tag `shoal.champion` of a version says who
made it the champion last, and why. A person who moves the alias on MLflow's page changes neither: nights follow the
alias, and the next move too (`succession`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.review.mlflow_log.model_registry import CHAMPION, set_champion

PREVIOUS = "previous"
"""Alias of the version that was the champion before; a rollback returns to it."""
CHAMPIONS = "shoal.champions"
MOVE = "shoal.champion"
PROMOTED = "promoted"
APPROVED = "approved"
ROLLED_BACK = "rolled back"
"""Kinds of moves: by a night, by `shoal model promote` or `rollback`."""


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
    for model in client.search_registered_models(f"name = '{name}'"):
        if CHAMPION in model.aliases:
            return str(model.aliases[CHAMPION])
    return None


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
    known = str(client.get_registered_model(name).tags.get(CHAMPIONS, "")).split()
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
    if not champions:
        return None
    return _move(client, name, champions, ROLLED_BACK, who, why)


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
