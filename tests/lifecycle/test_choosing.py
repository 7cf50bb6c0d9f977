"""`model.clusters: auto`: a number before the run begins, kept with how it was found; the same for equal settings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.core.errors import ShoalError
from shoal.data.sets.synthetic import gaussian
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import SettingsError, load_settings
from shoal.engine.store.choice import Choice
from shoal.engine.workers.worker import Worker
from shoal.lifecycle import choosing, starting
from shoal.lifecycle.choosing import known_choice, settings_of_space
from shoal.lifecycle.preparing import prepare_data, with_known_choices, with_scheme
from shoal.lifecycle.starting import find_like, new_run
from shoal.methods.auto import ENCODER
from shoal.methods.clustering.cluster_number import Candidate
from shoal.methods.contract.base import MethodError
from shoal.review.pages.figures import draw_figures, number_figure
from shoal.review.results.clusters import keep_clusters
from shoal.review.results.result import run_result
from tests.added_sets import add_set
from tests.conftest import one_quick
from tests.runs import straight

Make = Callable[..., Any]
POINTS = {"name": "gaussian", "limit": None, "options": {"samples": 80, "clusters": 3, "dimension": 8, "test": 20}}
AUTO = {"model": {"clusters": "auto"}, "choose": {"max_clusters": 6}}


def on_points(small: Make, **changes: Any) -> Any:
    partition = {"kind": "dirichlet", "clients": 3, "beta": 1.0}
    return small(**{"data": POINTS, "method": {"name": "kfed"}, "partition": partition, "rounds": 1, **AUTO, **changes})


@pytest.mark.long
def test_the_run_has_the_number_and_its_lineage_says_how_it_was_chosen(home: Path, small: Make) -> None:
    settings = on_points(small)
    run = straight(settings)
    assert run.settings().model.clusters == 3, "as many as were planted"
    told = run.lineage().clusters_chosen
    assert (told.clusters, told.min_clusters, told.max_clusters, told.features) == (3, 2, 6, "samples")
    assert [each.clusters for each in told.curve] == [2, 3, 4, 5, 6]
    first = run.events()[0]
    assert first.kind == "clusters_chosen"
    assert "3 clusters, of 2 to 6: the most detail on which halves" in first.message
    assert run.figures / "cluster-number.png" in draw_figures(run)
    lines = {str(line.get_label()): line.get_xydata() for line in number_figure(told).axes[0].get_lines()}
    (decides,) = [points for label, points in lines.items() if label.startswith("what decides")]
    assert max(decides, key=lambda point: point[1]).tolist() == [3, 1]
    expected_settings = on_points(small, model={"clusters": 3}, choose={})
    assert run.settings().digest() == expected_settings.digest(), "as if it had been set"
    for asked in (expected_settings, settings):
        like = find_like(asked)
        assert like is not None
        assert like.path == run.path


@pytest.mark.parametrize(
    ("clusters", "stability", "said"),
    [
        (3, 0.9, None),
        (3, 0.5, "agree little (adjusted Rand index 0.50)"),
        (6, 0.9, "6 is the largest that was tried: set choose.max_clusters higher, if samples allow"),
        (2, 0.9, "2 is the smallest that was tried"),
    ],
)
def test_a_number_at_the_edge_or_unstable_is_not_to_be_trusted(
    clusters: int, stability: float, said: str | None
) -> None:
    curve = tuple(Candidate(k, stability, 0.5) for k in range(2, 7))
    choice = Choice(clusters, "", 2, 6, 5, 0, "samples", 100, curve, "", "", "")
    assert (said is None) == (choice.doubt is None)
    assert (said or "") in (choice.doubt or "")


def test_where_the_silhouette_wants_more_than_the_smallest_number_it_is_named() -> None:
    curve = tuple(Candidate(k, 0.9, 0.3 if k == 5 else 0.2) for k in range(2, 7))
    choice = Choice(2, "", 2, 6, 5, 0, "samples", 100, curve, "", "", "")
    assert choice.doubt is not None
    assert choice.doubt.endswith("the silhouette is largest at 5: try model.clusters=5, too")


@pytest.mark.long
def test_a_number_at_the_edge_makes_the_verdict_doubtful(home: Path, small: Make) -> None:
    worker = Worker()
    run = straight(on_points(small, choose={"max_clusters": 3}), worker.handle)
    assert keep_clusters(run, worker.handle)
    verdict = run_result(run).verdict
    assert verdict is not None
    assert (verdict.word, verdict.reason.split(":")[0]) == ("doubtful", "Do not trust the number of clusters")
    assert "do not trust this number: 3 is the largest" in run.events()[0].message


@pytest.mark.long
def test_the_command_line_says_what_was_chosen(home: Path, small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.console import err
    from shoal.flows.execute import complete

    complete(new_run(on_points(small)), err)
    assert "3 clusters, of 2 to 6: the most detail on which halves" in capsys.readouterr().err


@pytest.mark.long
def test_the_same_settings_choose_once_and_other_data_choose_again(home: Path, small: Make, monkeypatch: Any) -> None:
    settings = on_points(small)
    run = new_run(settings)
    first = run.lineage().clusters_chosen
    shutil.rmtree(run.path)
    run = new_run(settings)
    assert run.lineage().clusters_chosen == first, "the same bits"
    monkeypatch.setattr("shoal.lifecycle.choosing.find_cluster_number", lambda *_: pytest.fail("it was chosen before"))
    assert new_run(settings).lineage().clusters_chosen == first
    assert with_known_choices(settings).model.clusters == 3
    for file in places.runs().glob("*/lineage.json"):
        file.write_bytes(file.read_bytes().replace(b'"clusters": 3', b'"clusters": 4', 1))
    assert known_choice(Choice, with_scheme(settings)) is None, "a file that was changed is not believed"


@pytest.mark.long
def test_a_number_of_another_rule_is_chosen_again(home: Path, small: Make) -> None:
    settings = with_scheme(on_points(small))
    run = new_run(settings)
    first = run.lineage().clusters_chosen
    assert first is not None
    older = replace(first, clusters=2, rule="most stable over halves of the clients' samples")
    run.set_lineage(clusters_chosen=older)
    assert with_known_choices(settings).chooses_clusters, "it is not known"
    assert new_run(settings).lineage().clusters_chosen == first
    assert with_known_choices(settings).model.clusters == 3


@pytest.mark.long
def test_a_number_is_sought_where_the_method_clusters(home: Path, small: Make) -> None:
    """A column in another unit hides three groups, unless columns are standardised."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    groups = 8.0 * np.eye(3)[y].repeat(4, 1) + rng.normal(size=(240, 12))
    add_set(written(home, np.hstack([groups, 1000 * rng.normal(size=(240, 1))])), "mine", places.store())
    data = {"name": "mine", "limit": None, "options": {}}

    def told(standardise: bool) -> Choice | None:
        method = {"name": "fedkmeans", "standardise": standardise}
        partition = {"kind": "iid", "clients": 3}
        run = new_run(on_points(small, data=data, method=method, partition=partition, rounds=8, local={}))
        return run.lineage().clusters_chosen

    choice = told(standardise=True)
    assert choice is not None
    assert choice.clusters == 3
    with pytest.raises(MethodError, match="no clusters"):
        told(standardise=False)


@pytest.mark.long
@pytest.mark.parametrize(("clients", "landmarks"), [(3, True), (12, False)])
def test_landmarks_are_placed_where_clients_hold_enough(
    home: Path, small: Make, monkeypatch: Any, clients: int, landmarks: bool
) -> None:
    seen: list[Any] = []
    find = choosing.find_cluster_number

    def spy(samples: Any, search: Any, seed: Any, watch: Any, collect: Any) -> Any:
        seen.append(collect)
        return find(samples, search, seed, watch, collect)

    monkeypatch.setattr(choosing, "find_cluster_number", spy)
    method = {"name": "fedkmeans", "landmarks": 40}
    partition = {"kind": "iid", "clients": clients}
    run = new_run(on_points(small, method=method, partition=partition, rounds=12, local={}))
    assert [collect and collect.args for collect in seen] == [(40,) if landmarks else None]
    told = run.lineage().clusters_chosen
    assert told is not None
    assert (told.clusters, told.features) == (3, "samples")


@pytest.mark.long
@pytest.mark.parametrize("landmarks", [40, 0])
def test_kinds_are_counted_and_not_the_offsets_of_sites(home: Path, small: Make, landmarks: int) -> None:
    x, _ = gaussian(6, 100, 10, 0)
    rng = np.random.default_rng(0)
    rows = rng.permutation(x) + 0.8 * x.std(0) * rng.normal(size=(8, 10))[np.arange(600) // 80]
    add_set(written(home, rows), "mine", places.store())
    changes = {"data": {"name": "mine", "limit": None, "options": {}}, "partition": {"kind": "by_column"}, "rounds": 8}
    numbers = []
    for sites in ("estimate", "ignore"):
        method = {"name": "fedkmeans", "landmarks": landmarks, "sites": sites}
        settings = on_points(small, **changes, method=method, choose={"min_clusters": 3, "max_clusters": 8}, local={})
        chosen = new_run(settings).lineage().clusters_chosen
        assert chosen is not None
        assert ("offsets of sites were taken off" in chosen.rule) == (sites == "estimate")
        numbers.append(chosen.clusters)
    assert numbers[0] == 6 != numbers[1]


def written(folder: Path, x: np.ndarray) -> Path:
    path = folder / "mine.csv"
    columns = {f"column {number}": x[:, number] for number in range(x.shape[1])}
    pd.DataFrame({"client": np.arange(len(x)) // 80, **columns}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("noise", one_quick(["uniform", "normal"]))
def test_noise_ends_with_a_sentence_before_training(home: Path, small: Make, noise: str) -> None:
    rows = getattr(np.random.default_rng(3), noise)(size=(240, 3))
    add_set(written(home, rows), "mine", places.store())
    data = {"name": "mine", "limit": None, "options": {}}
    changes = {"data": data, "method": {"name": "fedkmeans"}, "partition": {"kind": "iid", "clients": 3}, "rounds": 8}
    with pytest.raises(MethodError, match=r"^no clusters: K-means finds .* nothing was trained") as told:
        new_run(on_points(small, **changes))
    assert "\n" not in str(told.value)
    assert not list(places.runs().glob("[!.]*"))
    assert new_run(on_points(small, **{**changes, "model": {"clusters": 3}, "choose": {}})), "a number is trained"


def test_a_method_that_trains_asks_federated_kmeans(home: Path, small: Make, monkeypatch: Any) -> None:
    settings = small(model={"clusters": "auto"}, choose={"max_clusters": 4}, method={"name": "fedcc"}, rounds=2)
    monkeypatch.setattr(choosing, "is_installed", lambda name: False)
    told = new_run(settings).lineage().clusters_chosen
    assert told.features == "samples", "pixels, where the frozen encoder is missing"
    assert 2 <= told.clusters <= 4
    prepared = prepare_data(settings)
    monkeypatch.setattr(choosing, "is_installed", lambda name: True)
    assert settings_of_space(settings, prepared).model.encoder == ENCODER
    feature_method = small(model={"clusters": "auto"}, method={"name": "fedgmm"})
    assert settings_of_space(feature_method, prepared) is feature_method


REFUSED = [
    (
        ("method=fedavg", "partition.validation=0.2", "model.clusters=auto"),
        "'fedavg' learns from labels and looks for no number of clusters",
    ),
    (("method=fedpnp", "model.clusters=auto", "privacy.clip=1.0"), "not covered by privacy.clip"),
    (("choose.min_clusters=8", "choose.max_clusters=5"), "set max_clusters above min_clusters"),
    (("model.clusters=some",), "or input should be 'auto'"),
    (("model.clusters=-1",), "greater than or equal to 0"),
]


@pytest.mark.parametrize(("overrides", "words"), REFUSED)
def test_what_cannot_be_chosen_is_refused_in_one_sentence(home: Path, overrides: Any, words: str) -> None:
    with pytest.raises((MethodError, SettingsError), match=words) as told:
        new_run(load_settings(None, overrides))
    assert "\n" not in str(told.value)
    assert not places.runs().exists()


def test_no_more_clusters_are_tried_than_halves_have_samples_for(home: Path, small: Make) -> None:
    told = new_run(on_points(small, choose={"max_clusters": 30})).lineage().clusters_chosen
    assert told.clusters == 3
    most = told.curve[-1].clusters
    assert told.max_clusters == most < 30
    assert told.rule.endswith(f"; for more than {most} clusters halves have too few samples")


def test_a_choice_that_fails_leaves_no_run(home: Path, small: Make) -> None:
    few = {**POINTS, "options": {**POINTS["options"], "samples": 10}}
    with pytest.raises(ShoalError, match=r"set choose\.max_clusters to"):
        starting.new_run(on_points(small, data=few, choose={"min_clusters": 20, "max_clusters": 30}))
    assert not list(places.runs().glob("[!.]*"))
