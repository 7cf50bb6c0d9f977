"""Champion and challenger: judged on the same held-out samples, promoted by a margin, and told to MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from shoal.cli.model import promote, rollback
from shoal.data.intake.own import read_folder
from shoal.data.intake.own_store import store_batch
from shoal.data.sets.prepare import prepare
from shoal.data.sets.prepared import open_prepared
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.engine.workers.worker import Worker
from shoal.lifecycle.driving import CLUSTERS, ROUNDS, VIEWS, drive
from shoal.lifecycle.starting import new_run
from shoal.methods.scores.neighbours import neighbour_information
from shoal.methods.scores.verdict import Verdict
from shoal.models.frozen import frozen_encoder
from shoal.review.results.clusters import keep_clusters
from shoal.review.results.next_step import next_step
from shoal.review.results.result import run_result
from shoal.review.served import judging
from shoal.review.served.drift import find_drift
from shoal.review.served.judging import Decision, HeldOut, JudgingError, asked_for, compare, encoder_of
from shoal.review.served.promotion import (
    PromotionError,
    approve,
    champion_with_version,
    decision_of,
    execute_decision,
    keep_decision,
    roll_back,
)
from tests.conftest import SMALL
from tests.planted_images import draw, write_clients
from tests.runs import straight
from tests.scripted_encoder import Contrasts, write_scripted

Make = Callable[..., Any]
NAME = "shoal-fedpnp-digits"
TRAINING: dict[str, Any] = {"data": {"limit": 500}, "local": {"epochs": 2, "lr": 0.003}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunFolder, RunFolder]]:
    """A poor model that is the champion, being the first, and a better one; both registered."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("promotion")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        runs = []
        for rounds in (1, 5):
            changes = {"rounds": rounds, "tracking": {"mlflow": True}}
            run = new_run(make_settings(merge(SMALL, TRAINING, changes)))
            drive(run)
            runs.append(run)
        yield runs[0], runs[1]


def decided(pair: tuple[RunFolder, RunFolder], score: Any = "auto", margin: float = 0.02) -> Decision:
    return compare(pair[1], pair[0], prepare("digits", places.store()).folder, score, margin)


@pytest.mark.long
def test_the_score_without_labels_agrees_with_accuracy(pair: tuple[RunFolder, RunFolder]) -> None:
    decision = decided(pair)
    assert decision.champion is not None
    for name in ("acc", "neighbours"):
        assert decision.challenger.scores[name] > decision.champion.scores[name] + 0.02, name
    assert (decision.score, decision.promoted, decision.challenger.samples) == ("acc", True, 360)
    blind = decided(pair, "neighbours")
    assert (blind.score, blind.promoted) == ("neighbours", True)
    assert blind.challenger == decision.challenger
    other_way = compare(pair[0], pair[1], prepare("digits", places.store()).folder, "neighbours", 0.0)
    assert not other_way.promoted
    assert "not better" in other_way.why


def test_models_of_a_pretrained_encoder_are_judged_by_its_features_too(home: Path) -> None:
    """Pixels, averaged over 2 x 2, do not show a fine pattern; the encoder does."""
    rng = np.random.default_rng(0)
    patterned = rng.integers(0, 2, 80)
    colour = rng.integers(60, 196, (80, 3, 1, 1))
    checks = 60 * (np.indices((32, 32)).sum(0) % 2 * 2 - 1)
    x = (colour + patterned[:, None, None, None] * checks).astype(np.uint8)
    encoder = frozen_encoder(f"file:{write_scripted(home / 'contrasts.pt', 1.0, Contrasts)}")
    data = open_prepared(prepare("digits", places.store()).folder)
    assert neighbour_information(patterned, HeldOut(data, x, None).neighbours, 2) < 0.2
    assert neighbour_information(patterned, HeldOut(data, x, None, encoder).neighbours, 2) > 0.6


@pytest.mark.long
def test_the_encoder_of_a_model_that_no_client_trains_judges(home: Path, small: Make) -> None:
    frozen = new_run(small(method={"name": "fedkmeans"}, model={"encoder": "efficientnet-lite0"}))
    assert encoder_of(frozen) is not None
    assert encoder_of(new_run(small(method={"name": "fedcc"}))) is None
    assert encoder_of(new_run(small(method={"name": "kmeans"}))) is None


def test_the_margin_decides(pair: tuple[RunFolder, RunFolder]) -> None:
    decision = decided(pair)
    assert decision.champion is not None
    gap = decision.challenger.scores["acc"] - decision.champion.scores["acc"]
    assert decided(pair, margin=gap - 1e-9).promoted
    kept = decided(pair, margin=gap + 1e-9)
    assert not kept.promoted
    assert "less than the margin" in kept.why
    same = compare(pair[1], pair[1], prepare("digits", places.store()).folder, "auto", 0.0)
    assert (same.promoted, same.why) == (True, "it is the champion already")


@pytest.mark.long
def test_a_first_model_waits_where_it_is_to_be_asked_for_and_not_good(home: Path, small: Make) -> None:
    run = new_run(small(rounds=1, tracking={"mlflow": True, "register_as": "waiting"}))
    drive(run, stages=(ROUNDS, CLUSTERS))
    verdict = run_result(run).verdict
    assert verdict is not None
    assert verdict.word != "good"
    decision = asked_for(compare(run, None, prepare("digits", places.store()).folder, "auto", 0.02), run)
    assert (decision.promoted, decision.waits) == (False, True)
    assert decision.why.endswith(f"its verdict is {verdict.word}")
    keep_decision(run, decision, [])
    drive(run, stages=(VIEWS,))
    assert champion_with_version(run.settings(), places.runs()) == (None, None)
    assert "challenger" in champions("waiting")
    approve(run, "they are the groups")
    assert champions("waiting") == {"champion": "1"}


def test_a_good_first_model_waits_for_nobody(pair: tuple[RunFolder, RunFolder], monkeypatch: Any) -> None:
    first = compare(pair[1], None, prepare("digits", places.store()).folder, "auto", 0.02)
    good = replace(run_result(pair[1]), verdict=Verdict("good", "all are right"))
    monkeypatch.setattr(judging, "run_result", lambda run: good)
    assert asked_for(first, pair[1]) == first
    better = decided(pair)
    assert asked_for(better, pair[1]) == replace(better, promoted=False, waits=True)
    kept = replace(better, promoted=False)
    assert asked_for(kept, pair[1]) == kept


@pytest.mark.long
def test_mlflow_is_told_and_can_be_told_again(pair: tuple[RunFolder, RunFolder]) -> None:
    champion, challenger = pair
    client = MlflowClient(tracking_uri=f"sqlite:///{places.mlflow_store()}/mlflow.db")
    found = champion_with_version(challenger.settings(), places.runs())[0]
    assert found is not None
    assert found.name == champion.name
    assert decision_of(challenger) is None
    assert execute_decision(challenger) is None
    keep_decision(challenger, decided(pair, margin=0.9), [])
    assert execute_decision(challenger) == "2"
    assert str(client.get_model_version_by_alias(NAME, "champion").version) == "1"
    decision = decided(pair)
    keep_decision(challenger, decision, [])
    assert decision_of(challenger) == decision
    for _ in range(2):
        assert execute_decision(challenger) == "2"
        assert str(client.get_model_version_by_alias(NAME, "champion").version) == "2"
    tags = client.get_run(challenger.status().tracking.mlflow_run).data.tags
    assert tags["shoal.night.decision"] == "promoted"
    assert client.get_model_version(NAME, "2").tags["shoal.night.why"] == decision.why
    old, new = (judged.scores["acc"] for judged in (decision.champion, decision.challenger))
    assert tags["shoal.night.why"].startswith(f"acc {new:.4f} against the champion's {old:.4f}: better by ")
    assert f"(95% interval {decision.low:+.4f} to {decision.high:+.4f})" in tags["shoal.night.why"]
    moved = challenger.path.with_name("elsewhere")
    shutil.move(challenger.path, moved)
    try:
        with pytest.raises(PromotionError, match=f"comes from run {challenger.name}, whose folder is not in"):
            champion_with_version(champion.settings(), places.runs())[0]
    finally:
        shutil.move(moved, challenger.path)


def test_a_difference_that_may_be_chance_is_not_enough(pair: tuple[RunFolder, RunFolder]) -> None:
    decision = decided(pair)
    assert decision.champion is not None
    assert decision.low is not None
    assert decision.high is not None
    gap = decision.challenger.scores["acc"] - decision.champion.scores["acc"]
    assert 0 < decision.low < gap < decision.high
    assert f"95% interval {decision.low:+.4f} to {decision.high:+.4f}" in decision.why
    assert decided(pair) == decision  # the draws come from the run's seed
    few = prepare("digits", places.store())
    samples = HeldOut(few, np.asarray(few.test_x[:12]), np.asarray(few.test_y[:12]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "held_out_samples", lambda prepared, encoder=None: samples)
        unsure = decided(pair, margin=0.0)
    assert unsure.champion is not None
    assert unsure.challenger.samples == 12
    difference = unsure.challenger.scores["acc"] - unsure.champion.scores["acc"]
    assert unsure.low is not None
    assert unsure.low <= 0 < difference
    assert not unsure.promoted
    assert f"better by {difference:.4f}, which may be chance" in unsure.why


def champions(name: str = NAME) -> dict[str, str]:
    client = MlflowClient(tracking_uri=f"sqlite:///{places.mlflow_store()}/mlflow.db")
    return {alias: str(version) for alias, version in client.get_registered_model(name).aliases.items()}


def test_a_champion_is_taken_back_and_approved_again(
    pair: tuple[RunFolder, RunFolder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "anna")
    champion, challenger = pair
    keep_decision(challenger, decided(pair), [])
    execute_decision(challenger)
    assert (champions()["champion"], champions()["previous"]) == ("2", "1")
    rollback(None, why="it mixes ones and sevens")
    assert f"models:/{NAME}/1 of run {champion.name} is the champion again" in capsys.readouterr().out
    assert champions()["champion"] == "1"
    assert "previous" not in champions()
    moved = [event.message for event in champion.events() if event.kind == "champion_moved"]
    assert moved == [f"anna returned from models:/{NAME}/2 to models:/{NAME}/1: it mixes ones and sevens"]
    execute_decision(challenger)  # a night that is repeated does not undo what a person did
    assert champions()["champion"] == "1"
    with pytest.raises(PromotionError, match="there is nothing to return to"):
        roll_back(NAME, places.runs())
    promote(challenger.name, why="they are rare")
    said = capsys.readouterr().out
    assert f"models:/{NAME}/2 of run {challenger.name} is the champion" in said
    assert f"before it was version 1; `shoal model rollback {NAME}` returns to it" in said
    assert champions()["champion"] == "2"
    promote(challenger.name, why="once more")
    assert "is the champion already" in capsys.readouterr().out
    (newest := places.runs() / "20990101-000000_damaged").mkdir()
    (newest / "settings.yaml").write_text("{")
    with pytest.raises(PromotionError, match=f"'other' had no champion .* these have one: {NAME}"):
        roll_back("other", places.runs())


def test_a_challenger_that_waits_keeps_its_alias_until_it_is_approved(pair: tuple[RunFolder, RunFolder]) -> None:
    champion, challenger = pair
    client = MlflowClient(tracking_uri=f"sqlite:///{places.mlflow_store()}/mlflow.db")
    roll_back(NAME, places.runs())
    result = run_result(challenger)
    keep_decision(challenger, replace(decided(pair), promoted=False), [])
    assert next_step(challenger, result).words.startswith("Nothing: the champion stays in use (acc ")
    waiting = replace(decided(pair), promoted=False, waits=True)
    keep_decision(challenger, waiting, [])
    assert decision_of(challenger) == waiting
    asked = next_step(challenger, result)
    assert asked.words.startswith("The night asks for your approval: ")
    assert asked.command == f"shoal model promote {challenger.name} --why REASON"
    execute_decision(challenger)
    assert champions()["champion"] == "1"
    assert client.get_model_version(NAME, "2").tags["shoal.night.decision"] == "waits for approval"
    client.set_registered_model_alias(NAME, "champion", "2")  # on MLflow's page
    assert champion_with_version(champion.settings(), places.runs())[0].name == challenger.name


@pytest.mark.long
def test_what_cannot_be_judged_is_said(pair: tuple[RunFolder, RunFolder], tmp_path: Path) -> None:
    write_clients(tmp_path / "photos", each=2)
    photos = store_batch("photos", tmp_path / "store", read_folder(tmp_path / "photos").batch, 0.2, 0)
    with pytest.raises(JudgingError, match=r"'photos' holds out \d samples, and a comparison needs at least 10"):
        compare(pair[1], pair[0], photos.folder, "auto", 0.01)
    write_clients(tmp_path / "more", each=12)
    more = store_batch("more", tmp_path / "store", read_folder(tmp_path / "more").batch, 0.4, 0)
    with pytest.raises(JudgingError, match=r"was trained on images of shape \(1, 8, 8\), and 'more' holds"):
        compare(pair[1], pair[0], more.folder, "auto", 0.01)
    settings = make_settings(merge(SMALL, {"tracking": {"register_as": "none"}}))
    with pytest.raises(PromotionError, match="a champion needs a registered name"):
        champion_with_version(settings, places.runs())[0]
    assert (
        champion_with_version(make_settings(merge(SMALL, {"tracking": {"register_as": "new"}})), places.runs())[0]
        is None
    )


@pytest.mark.long
def test_drift_of_one_client_is_found_and_told(home: Path, small: Make) -> None:
    store, folder, rng = places.store(), home / "pictures", np.random.default_rng(3)

    def add(client: str, kinds: tuple[str, ...], each: int, name: str) -> None:
        (folder / client).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            for kind in kinds:
                draw(kind, rng).save(folder / client / f"{kind}-{name}{number}.png")

    def grown(onto: Any = None) -> Any:
        return store_batch("photos", store, read_folder(folder, onto, grows=True).batch, 0.2, 0, onto)

    for client in ("north", "south"):
        add(client, ("dark", "left", "right"), 20, "a")
    first = grown()
    settings = small(
        data={"name": "photos", "limit": None}, partition={"kind": "auto", "clients": None},
        method={"name": "kmeans"}, model={"clusters": 3}, rounds=1,
    )  # fmt: skip
    worker = Worker()
    champion = straight(settings, worker.handle)
    assert keep_clusters(champion, worker.handle)
    assert find_drift(champion, first.folder, 0.01, 0) == []
    add("north", ("dark", "left", "right"), 8, "b")
    add("south", ("right",), 40, "b")
    add("late", ("dark",), 6, "b")  # a new client is no client that changed
    second = grown(first)
    found = {each.client: each for each in find_drift(champion, second.folder, 0.01, 0)}
    assert set(found) == {"", "north", "south"}
    assert [client for client, each in found.items() if each.found] == ["", "south"]
    south = found["south"]
    assert (south.old, south.new) == (60, 40)
    assert south.distance > south.by_chance > 0
    assert "cluster shares of client south differ from 60 old to 40 new samples" in south.sentence()
    assert find_drift(champion, second.folder, 0.01, 0) == list(found.values())
    Image.new("L", (12, 12)).save(folder / "north" / "one-more.png")
    third = grown(second)  # too few to say anything of
    assert find_drift(champion, third.folder, 0.01, 0) == []
