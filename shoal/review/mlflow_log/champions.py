"""The history of a champion: which version of a registered name was given the alias, when, by whom and why.

Each move of the alias is a tag of the version that got it, `shoal.champion.0003` for the third move, with a JSON value.
The history of a name is therefore in the registry itself: all such tags of all its versions, in the order of their
numbers. A move that a person makes on MLflow's page has no such tag; the next command or night that looks at the name
adds one (`note_move_by_hand`). The alias `previous` points to the version that a rollback returns to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.review.mlflow_log.model_registry import CHAMPION, set_champion

PREVIOUS = "previous"
"""Alias of the version that was the champion before; a rollback returns to it."""
TAG = "shoal.champion."
"""Prefix of the tags of a version; the number of the move follows."""
FIRST = "first"
PROMOTED = "promoted"
APPROVED = "approved"
ROLLED_BACK = "rolled back"
BY_HAND = "set in MLflow"
"""Kinds of moves: the first version of a name, by a night, by `shoal model promote` or `rollback`, on MLflow's page."""
WHY_TAG = "shoal.why"
"""Tag of a version in which a person who sets the alias on MLflow's page can give the reason."""
UNKNOWN = "somebody on MLflow's page, which does not record who"


@dataclass(frozen=True)
class Move:
    """One move of the alias `champion`.

    Args:
        number: of the move, from 1.
        version: the version that got the alias.
        kind: what moved it (`FIRST` and the others).
        who: the user.
        why: the reason, in a sentence.
        at: the time, UTC, in ISO 8601.
    """

    number: int
    version: str
    kind: str
    who: str
    why: str
    at: str


def history(client: Any, name: str) -> list[Move]:
    """Return all recorded moves of the champion of a registered name, the oldest first.

    Args:
        client: an MlflowClient.
        name: of the registered model.
    """
    moves = []
    for version in client.search_model_versions(f"name = '{name}'"):
        for key, value in version.tags.items():
            if key.startswith(TAG):
                moves.append(Move(int(key.removeprefix(TAG)), str(version.version), **json.loads(value)))
    return sorted(moves, key=lambda move: (move.number, move.at))


def succession(moves: Sequence[Move]) -> list[str]:
    """Return the champions that lead to the present one, the present one last.

    A rollback, and a return to an earlier champion on MLflow's page, take back the promotions since that champion.

    >>> moves = [Move(k, v, kind, "", "", "") for k, (v, kind) in enumerate(
    ...     [("1", FIRST), ("2", PROMOTED), ("3", PROMOTED), ("2", ROLLED_BACK), ("4", APPROVED)])]
    >>> succession(moves[:3]), succession(moves[:4]), succession(moves)
    (['1', '2', '3'], ['1', '2'], ['1', '2', '4'])
    """
    champions: list[str] = []
    for move in moves:
        if move.kind in (ROLLED_BACK, BY_HAND) and move.version in champions:
            last = len(champions) - 1 - champions[::-1].index(move.version)
            champions = champions[: last + 1]
        elif champions[-1:] != [move.version]:
            champions.append(move.version)
    return champions


def version_before(moves: Sequence[Move]) -> str | None:
    """Return the version that a rollback returns to; None where there was no champion before."""
    champions = succession(moves)
    if len(champions) < 2:
        return None
    return champions[-2]


def note_move_by_hand(client: Any, name: str) -> Move | None:
    """Record a move of the alias that nobody recorded: of the first version, or by a person on MLflow's page.

    Args:
        client: an MlflowClient.
        name: of the registered model.

    Returns:
        The move; None where the last recorded move is that of the present champion, or there is no champion.
    """
    champion = champion_version(client, name)
    moves = history(client, name)
    if champion is None or (moves and moves[-1].version == champion):
        return None
    why = client.get_model_version(name, champion).tags.get(WHY_TAG, "no reason was given")
    kind = BY_HAND
    who = UNKNOWN
    if not moves and champion == "1":
        kind = FIRST
        who = "Shoal"
        why = "the first version of a name is its champion"
    set_champion(client, name, champion)  # it may be the challenger that was waiting
    return _record(client, name, moves, champion, kind, who, why)


def make_champion(client: Any, name: str, version: str, kind: str, who: str, why: str) -> Move | None:
    """Give the alias `champion` to a version, and record the move; do nothing where both was done before.

    The alias comes first: after a kill in between, the same call records the move.

    Args:
        client: an MlflowClient.
        name: of the registered model.
        version: of that name.
        kind: `PROMOTED` or `APPROVED`.
        who, why: as in `Move`.

    Returns:
        The move; None where the version is the recorded champion already.
    """
    if champion_version(client, name) != version:
        note_move_by_hand(client, name)
    moves = history(client, name)
    set_champion(client, name, version)
    if moves and moves[-1].version == version:
        return None
    return _record(client, name, moves, version, kind, who, why)


def return_to_previous(client: Any, name: str, who: str, why: str) -> Move | None:
    """Give the alias `champion` back to the version that had it before, and record the move.

    The record comes first: after a kill in between, the same call returns to the same version.

    Returns:
        The move; None where there was no champion before.
    """
    note_move_by_hand(client, name)
    moves = history(client, name)
    version = version_before(moves)
    if version is None:
        return None
    move = _record(client, name, moves, version, ROLLED_BACK, who, why)
    set_champion(client, name, version)
    return move


def champion_version(client: Any, name: str) -> str | None:
    """Return the version that has the alias `champion`; None where none has it, or no model has the name."""
    for model in client.search_registered_models(f"name = '{name}'"):
        if CHAMPION in model.aliases:
            return str(model.aliases[CHAMPION])
    return None


def _record(client: Any, name: str, moves: Sequence[Move], version: str, kind: str, who: str, why: str) -> Move:
    """Write the tag of a move, and point the alias `previous` to the champion before it."""
    number = 1
    if moves:
        number = moves[-1].number + 1
    move = Move(number, version, kind, who, why, datetime.now(UTC).isoformat(timespec="milliseconds"))
    value = {key: text for key, text in asdict(move).items() if key not in ("number", "version")}
    client.set_model_version_tag(name, version, f"{TAG}{number:04d}", json.dumps(value))
    before = version_before([*moves, move])
    if before is not None:
        client.set_registered_model_alias(name, PREVIOUS, before)
    elif PREVIOUS in client.get_registered_model(name).aliases:
        client.delete_registered_model_alias(name, PREVIOUS)
    return move
