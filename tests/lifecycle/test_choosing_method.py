"""`method.name: auto`: a method before the run begins, kept with the reason; the same for equal settings."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import ShoalError
from shoal.data.sets.prepared import PreparedSet
from shoal.data.sets.remedy import EMBEDDED
from shoal.engine.settings.run_settings import Settings, SettingsError, make_settings
from shoal.engine.store.run_folder import LINEAGE
from shoal.lifecycle import choosing_method
from shoal.lifecycle.choosing_method import facts_of
from shoal.lifecycle.nights import earlier_method
from shoal.lifecycle.preflight import check_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_known_choices, with_scheme
from shoal.lifecycle.starting import find_like, new_run
from shoal.methods.auto import Rule, rule_for
from shoal.methods.contract.context import MethodError
from shoal.models.frozen import is_installed
from shoal.review.results.result import run_result
from shoal.review.results.stable_names import NIGHT
from shoal.review.results.summary import progress_in_words

Make = Callable[..., Any]
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 80, "clusters": 3, "dimension": 8, "test": 20}}
SCALES = np.array([100, 1, 1, 1, 1, 1, 1, 1], dtype=np.float32)


def unnamed(**changes: Any) -> Settings:
    """Return settings of a short run that name neither method nor budget."""
    base = {
        "data": POINTS,
        "partition": {"kind": "dirichlet", "clients": 3, "beta": 1.0},
        "workers": {"device": "cpu", "precision": "fp32", "slots": 1},
        "tracking": {"mlflow": False, "prefect": "off"},
    }
    return make_settings({**base, **changes})


@pytest.mark.parametrize("data", [POINTS, {"name": "digits", "limit": 60}])
def test_rounds_that_end_before_there_are_clusters_are_refused(home: Path, data: dict[str, Any]) -> None:
    named = {"method": {"name": "fedkmeans", "standardise": True}, "data": data, "model": {"encoder": "tiny-conv"}}
    if data is POINTS:
        del named["model"]
    with pytest.raises(
        SettingsError, match=r"rounds is 1, .* has its first clusters after round 2: set rounds to 2 or more"
    ):
        new_run(unnamed(**named, rounds=1))
    new_run(unnamed(**named, rounds=2))


def test_the_run_has_the_method_and_its_lineage_says_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.console import err
    from shoal.flows.execute import complete

    settings = unnamed()
    assert settings.chooses_method
    run = new_run(settings)
    complete(run, err)
    assert "federated K-means on columns as they are" in capsys.readouterr().err
    chosen = run.lineage().method_chosen
    assert chosen is not None
    assert chosen.method == run.settings().method.name == "fedkmeans"
    assert run.settings().rounds == 60
    ended = progress_in_words(run, run_result(run))
    assert re.fullmatch(r"finished after \d+ of 60 rounds, since more would change nothing", ended)
    assert not run.settings().chooses_method
    first = run.events()[0]
    assert (first.kind, first.message) == ("method_chosen", chosen.reason)
    assert with_known_choices(settings).digest() == run.settings().digest(), "as if it had been named"
    like = find_like(settings)
    assert like is not None
    assert like.path == run.path


def test_the_same_settings_choose_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = unnamed()
    run = new_run(settings)
    first = run.lineage().method_chosen
    shutil.rmtree(run.path)
    assert new_run(settings).lineage().method_chosen == first, "the same figures"
    monkeypatch.setattr(choosing_method, "facts_of", lambda *_: pytest.fail("it was chosen before"))
    assert new_run(settings).lineage().method_chosen == first
    monkeypatch.setattr(choosing_method, "is_installed", lambda _: not is_installed("efficientnet-lite0"))
    with pytest.raises(BaseException, match="chosen before"):
        new_run(settings)  # an encoder that was installed since may change the choice


def test_nights_keep_the_method_of_their_own_set(home: Path) -> None:
    run = new_run(unnamed())
    run.event(NIGHT)
    moved = run.path.rename(run.path.with_name("20260101-000000_auto_gaussian_digits_2"))
    assert not earlier_method(unnamed()).chooses_method
    assert earlier_method(unnamed(data={"name": "digits"})).chooses_method, "the set `gaussian_digits_2` is another one"
    (moved / LINEAGE).write_text("{")
    assert earlier_method(unnamed()).chooses_method


def test_other_rules_than_those_of_the_choice_choose_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of Shoal: what was chosen by yesterday's rules is not today's default."""
    settings = unnamed()
    before = new_run(settings)
    rule = Rule(lambda facts: True, "yesterday's rule", {"method": {"name": "fedgmm"}})
    with monkeypatch.context() as patched:
        patched.setattr(choosing_method, "rule_for", lambda facts: rule)
        after = new_run(settings)
        assert after.settings().method.name == "fedgmm"
        assert after.events()[0].message == "yesterday's rule"
    assert new_run(settings).settings().digest() == before.settings().digest()


@pytest.mark.long
def test_images_are_compared_in_both_spaces(home: Path) -> None:
    run = new_run(unnamed(data={"name": "digits", "limit": 120}))
    chosen = run.lineage().method_chosen
    assert chosen is not None
    assert 0 < chosen.facts.pixels < 1
    assert 0 < chosen.facts.features < 1
    pixels_win = chosen.facts.pixels > chosen.facts.features + 0.1
    assert run.settings().model.encoder == ("pixels" if pixels_win else "efficientnet-lite0")


def test_without_the_encoder_pixels_are_clustered_and_the_reason_says_so(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(choosing_method, "is_installed", lambda _: False)
    run = new_run(unnamed(data={"name": "digits", "limit": 120}))
    assert run.settings().model.encoder == "pixels"
    assert "the frozen encoder is not installed" in run.events()[0].message


def test_a_network_to_train_has_a_budget_in_steps(home: Path) -> None:
    changes = {"data": {"name": "digits", "limit": 240}, "model": {"encoder": "tiny-conv"}, "local": {"batch": 24}}
    settings = settled_by_run(unnamed(**changes))
    assert settings.method.name == "fedsimclr_kmeans"
    assert (settings.local.steps, settings.local.epochs, settings.local.batch) == (50, None, 24)


def settled_by_run(settings: Settings) -> Settings:
    """Return the settings of a new run."""
    return new_run(settings).settings()


def test_local_settings_without_effect_are_told(home: Path) -> None:
    run = new_run(unnamed(local={"lr": 0.1}))
    told = [event.message for event in run.events() if event.kind == "settings_unused"]
    assert told == [
        "local.lr without effect: method auto chose fedkmeans, which trains nothing; set method.name to a method that "
        "trains"
    ]


def test_what_only_some_methods_take_wants_a_method(home: Path) -> None:
    with pytest.raises(MethodError, match=r"privacy\.clip is for some methods only, and method\.name is auto"):
        check_method(unnamed(privacy={"clip": 1.0, "noise": 1.0}))


def test_a_budget_is_said_in_steps_or_in_epochs(home: Path, small: Make) -> None:
    settings = small(local={"epochs": None, "steps": 3})
    assert settings.local.epochs is None
    assert make_settings(settings.to_json()) == settings
    assert settings.digest() != small().digest() == small(local={"steps": 0}).digest()
    with pytest.raises(ShoalError, match=r"local\.steps and local\.epochs both set how long"):
        small(local={"epochs": 2, "steps": 3})
    with pytest.raises(ShoalError, match=r"local\.steps: method 'uifca' does not count steps: .*, fedpnp"):
        small(method={"name": "uifca"}, local={"epochs": None, "steps": 3})


def test_a_pretrained_start_asks_for_training(home: Path) -> None:
    model = {"encoder": "efficientnet-lite0", "start": "pretrained"}
    run = new_run(unnamed(data={"name": "digits", "limit": 60}, model=model))
    assert run.settings().method.name == "fedsimclr_kmeans"
    assert run.settings().model.start == "pretrained"


@pytest.mark.long
def test_an_open_number_of_clusters_is_sought_among_the_features_that_are_clustered(home: Path) -> None:
    changes = {"data": {"name": "digits", "limit": 90}, "choose": {"max_clusters": 4}}
    encoder = {"clusters": "auto", "encoder": "efficientnet-lite0"}
    run = new_run(unnamed(**changes, model=encoder))
    chosen = run.lineage().clusters_chosen
    assert chosen is not None
    assert chosen.features == "efficientnet-lite0"
    assert 2 <= chosen.clusters == run.settings().model.clusters <= 4
    kinds = [event.kind for event in run.events()[:2]]
    assert kinds == ["method_chosen", "clusters_chosen"]
    pixels = new_run(unnamed(**changes, model={**encoder, "encoder": "pixels"})).lineage().clusters_chosen
    assert pixels is not None
    assert pixels.features == "samples"


def test_what_an_encoder_made_is_clustered_as_it_is(home: Path) -> None:
    """Its columns differ in spread, and standardising them would make its rare features as loud as the others."""
    settings = with_scheme(unnamed())
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    wide = PreparedSet(prepared.folder, prepared.manifest, np.asarray(prepared.train_x) * SCALES, None, None, None)
    assert rule_for(facts_of(settings, wide, table)).settings["method"]["standardise"]
    embedded = replace(wide, manifest=replace(wide.manifest, extra={**wide.manifest.extra, EMBEDDED: {}}))
    facts = facts_of(settings, embedded, table)
    assert facts.embedded
    assert facts.total == len(wide.train_x)
    assert not rule_for(facts).settings["method"].get("standardise", False)


def test_counts_of_which_most_are_nothing_are_clustered_by_directions(home: Path) -> None:
    settings = with_scheme(unnamed())
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    counts = np.random.default_rng(0).poisson(0.4, prepared.train_x.shape).astype(np.float32)
    for x, sparse in ((counts, True), (counts + 1, False), (counts / 2, False), (-counts, False), (counts > 0, False)):
        facts = facts_of(settings, replace(prepared, train_x=x.astype(np.float32)), table)
        assert facts.counts == sparse
        assert (rule_for(facts).settings["method"].get("representation") == "counts") == sparse


@pytest.mark.long
@pytest.mark.parametrize("in_phase", [False, True])
def test_windows_out_of_phase_are_clustered_by_their_spectra(home: Path, in_phase: bool) -> None:
    settings = with_scheme(unnamed(model={"clusters": 3}))
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    rng = np.random.default_rng(0)
    count = len(prepared.train_x)
    begin = np.zeros(count) if in_phase else rng.uniform(0, 32, count)
    angle = 2 * np.pi * (np.arange(count) % 3 + 2)[:, None] * (np.arange(32) + begin[:, None]) / 32
    windows = (np.sin(angle) + rng.normal(0, 0.3, angle.shape)).astype(np.float32)[:, None]
    manifest = replace(prepared.manifest, kind="series", shape=(1, 32))
    facts = facts_of(settings, PreparedSet(prepared.folder, manifest, windows, None, None, None), table)
    assert (facts.spectrum is None) == in_phase, "spectra are looked at where values have no groups"
    assert rule_for(facts).settings["method"].get("representation") == (None if in_phase else "spectrum")


@pytest.mark.long
@pytest.mark.parametrize("stained", [True, False])
def test_clients_of_other_stains_are_taken_in_even_light(home: Path, stained: bool) -> None:
    settings = with_scheme(unnamed(data={"name": "digits", "limit": 90}, partition={"kind": "iid", "clients": 3}))
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, len(prepared.train_x))
    ink = np.zeros((len(kind), 24, 24))
    for image, shape in zip(ink, kind, strict=True):
        row, column = rng.integers(2, 8, 2)
        image[row : row + (14, 5, 14)[shape], column : column + (5, 14, 14)[shape]] = 0.8
    stain = np.array([[0.9, 0.2, 0.1], [0.1, 0.9, 0.3], [0.2, 0.1, 0.9]])
    client = np.zeros(len(kind), dtype=int)
    for number in range(table.clients):
        client[table.sample[table.rows(number)]] = number if stained else 0
    images = 255 * (1 - ink[:, None] * stain[client][:, :, None, None])
    manifest = replace(prepared.manifest, shape=(3, 24, 24))
    facts = facts_of(settings, PreparedSet(prepared.folder, manifest, images.astype(np.uint8), None, None, None), table)
    assert (facts.light_by_client is not None) == stained
    assert facts.other_light == stained
