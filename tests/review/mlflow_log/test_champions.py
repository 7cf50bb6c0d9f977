"""The history of a champion, in a real registry: promotions, approvals, rollbacks, and the alias set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.review.mlflow_log import champions
from shoal.review.mlflow_log.champions import (
    APPROVED,
    BY_HAND,
    FIRST,
    PREVIOUS,
    PROMOTED,
    ROLLED_BACK,
    Move,
    history,
    make_champion,
    note_move_by_hand,
    return_to_previous,
    succession,
)
from shoal.review.mlflow_log.embedded_store import ready_store, store_uri

NAME = "birds"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_HOME", str(tmp_path_factory.mktemp("registry")))
        ready_store(places.mlflow_store())
        yield MlflowClient(tracking_uri=store_uri(places.mlflow_store()))


@pytest.fixture
def client(store: MlflowClient) -> Iterator[MlflowClient]:
    """A registry with four versions, of which the first is the champion, as after the first run."""
    store.create_registered_model(NAME)
    for _ in range(4):
        store.create_model_version(NAME, "file:///nowhere")
    store.set_registered_model_alias(NAME, "champion", "1")
    yield store
    store.delete_registered_model(NAME)


def aliases(client: MlflowClient) -> dict[str, str]:
    return {alias: str(version) for alias, version in client.get_registered_model(NAME).aliases.items()}


def story(client: MlflowClient) -> list[tuple[str, str]]:
    return [(move.version, move.kind) for move in history(client, NAME)]


def test_promotions_and_rollbacks_are_told_by_the_registry_alone(client: MlflowClient) -> None:
    assert history(client, NAME) == []
    client.set_registered_model_alias(NAME, "challenger", "2")
    move = make_champion(client, NAME, "2", PROMOTED, "the night of anna", "acc 0.9 against 0.8")
    assert move is not None
    assert (move.number, move.who, move.why) == (2, "the night of anna", "acc 0.9 against 0.8")
    assert story(client) == [("1", FIRST), ("2", PROMOTED)]
    assert aliases(client) == {"champion": "2", PREVIOUS: "1"}
    assert make_champion(client, NAME, "2", PROMOTED, "the night of anna", "again") is None
    make_champion(client, NAME, "3", APPROVED, "bert", "sharper")
    assert aliases(client) == {"champion": "3", PREVIOUS: "2"}
    back = return_to_previous(client, NAME, "bert", "it loses the gulls")
    assert back is not None
    assert (back.version, back.kind, back.why) == ("2", ROLLED_BACK, "it loses the gulls")
    assert aliases(client) == {"champion": "2", PREVIOUS: "1"}
    assert return_to_previous(client, NAME, "bert", "") is not None
    assert aliases(client) == {"champion": "1"}
    assert return_to_previous(client, NAME, "bert", "") is None
    assert aliases(client) == {"champion": "1"}
    assert [version for version, _ in story(client)] == ["1", "2", "3", "2", "1"]


def test_an_alias_that_a_person_sets_is_noted_once(client: MlflowClient) -> None:
    make_champion(client, NAME, "2", PROMOTED, "a night", "better")
    client.set_registered_model_alias(NAME, "challenger", "3")
    client.set_model_version_tag(NAME, "3", "shoal.why", "I looked at it")
    client.set_registered_model_alias(NAME, "champion", "3")
    move = note_move_by_hand(client, NAME)
    assert move is not None
    assert (move.version, move.kind, move.why) == ("3", BY_HAND, "I looked at it")
    assert "does not record who" in move.who
    assert note_move_by_hand(client, NAME) is None
    assert aliases(client) == {"champion": "3", PREVIOUS: "2"}
    client.set_registered_model_alias(NAME, "champion", "2")  # on the page, back to where it was
    assert note_move_by_hand(client, NAME) is not None
    assert aliases(client) == {"champion": "2", PREVIOUS: "1"}


@pytest.mark.parametrize("promote", [True, False], ids=["promotion", "rollback"])
def test_a_kill_between_alias_and_record_is_made_good(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, promote: bool
) -> None:
    for version in ("2", "3"):
        make_champion(client, NAME, version, PROMOTED, "a night", "better")

    def act() -> Any:
        if promote:
            return make_champion(client, NAME, "4", PROMOTED, "a night", "better")
        return return_to_previous(client, NAME, "anna", "worse")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(champions, "_record" if promote else "set_champion", killed)
        with pytest.raises(KeyboardInterrupt):
            act()
    assert act() is not None
    expected = {"champion": "4", PREVIOUS: "3"} if promote else {"champion": "2", PREVIOUS: "1"}
    assert aliases(client) == expected


def test_what_leads_to_the_champion() -> None:
    def after(*moves: tuple[str, str]) -> list[str]:
        return succession([Move(number, version, kind, "", "", "") for number, (version, kind) in enumerate(moves)])

    assert after() == []
    assert after(("1", FIRST), ("2", PROMOTED), ("1", APPROVED)) == ["1", "2", "1"]
    assert after(("1", FIRST), ("2", PROMOTED), ("1", BY_HAND)) == ["1"]
    assert after(("1", FIRST), ("2", PROMOTED), ("3", BY_HAND), ("2", ROLLED_BACK)) == ["1", "2"]
