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
    PREVIOUS,
    PROMOTED,
    ROLLED_BACK,
    last_move,
    make_champion,
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


def test_a_name_that_no_model_has_has_no_champion(store: MlflowClient) -> None:
    assert return_to_previous(store, "nobody", "anna", "no reason") is None


def test_promotions_and_rollbacks_are_told_by_the_registry_alone(client: MlflowClient) -> None:
    assert succession(client, NAME) == ["1"]
    client.set_registered_model_alias(NAME, "challenger", "2")
    move = make_champion(client, NAME, "2", PROMOTED, "the night of anna", "acc 0.9 against 0.8")
    assert move is not None
    assert last_move(client, NAME, "2") == move
    assert (move.kind, move.who, move.why) == (PROMOTED, "the night of anna", "acc 0.9 against 0.8")
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
    assert succession(client, NAME) == ["1"]
    client.set_registered_model_alias(NAME, "champion", "4")  # as a person does on MLflow's page
    assert succession(client, NAME) == ["1", "4"]
    assert return_to_previous(client, NAME, "bert", "") is not None
    assert aliases(client) == {"champion": "1"}


@pytest.mark.parametrize("promote", [True, False], ids=["promotion", "rollback"])
@pytest.mark.parametrize("step", ["set_champion", "asdict"])
def test_a_kill_between_alias_and_records_is_made_good(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch, promote: bool, step: str
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
        patch.setattr(champions, step, killed)
        with pytest.raises(KeyboardInterrupt):
            act()
    if promote or step == "set_champion":
        assert act() is not None
    assert aliases(client) == ({"champion": "4", PREVIOUS: "3"} if promote else {"champion": "2", PREVIOUS: "1"})
