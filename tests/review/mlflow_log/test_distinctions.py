"""Names and columns that tell the runs of an experiment apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.distinctions import (
    DISTINCTIONS,
    MAX_NAME_CHARACTERS,
    VIEW_TAG,
    Distinctions,
    chosen_settings,
    run_name,
    title,
    title_in,
    value_in_name,
    view,
)
from shoal.review.mlflow_log.embedded_store import store_uri
from tests.conftest import SMALL

pytestmark = pytest.mark.long

ON = {"mlflow": True, "model": False}


def test_what_a_person_chose_is_what_is_compared() -> None:
    settings = make_settings({"method": "fedcc", "seed": 4, "partition": {"kind": "dirichlet", "beta": 0.2}})
    assert chosen_settings(settings) == {}, "a title says seed and partition"
    where = {"workers": {"slots": 1}, "tracking": {"experiment": "mine"}, "checkpoint": {"keep": 3}}
    assert chosen_settings(make_settings({"method": "fedcc", **where})) == {}, "that is not what is computed"
    chosen = chosen_settings(make_settings({"method": "fedcc", "rounds": 5, "local": {"lr": 0.01}}))
    assert chosen == {"rounds": "5", "local.lr": "0.01"}
    long = make_settings({"method": {"name": "cfl", "criterion": "schedule", "schedule": list(range(1, 300))}})
    other = make_settings({"method": {"name": "cfl", "criterion": "schedule", "schedule": list(range(1, 301))}})
    assert chosen_settings(long)["method.schedule"] != chosen_settings(other)["method.schedule"]
    assert len(chosen_settings(long)["method.schedule"]) < 30


def test_settings_that_a_method_does_not_read_set_no_runs_apart() -> None:
    local = {"local": {"lr": 0.0004}, "augment": {"recipe": "strong"}}
    assert chosen_settings(make_settings({"method": "fedkmeans", "rounds": 5, **local})) == {"rounds": "5"}
    assert set(chosen_settings(make_settings({"method": "fedcc", "rounds": 5, **local}))) >= {"rounds", "local.lr"}
    values = {"method.name": "fedkmeans", "local.lr": "0.0004", "rounds": "5"}
    assert run_name(values, ["local.lr", "rounds"], "fedkmeans digits iid") == "fedkmeans digits · rounds 5 · iid"
    trained = {**values, "method.name": "fedcc"}
    assert run_name(trained, ["local.lr", "rounds"], "fedcc digits iid") == "fedcc digits · lr 0.0004 · rounds 5 · iid"


def test_the_order_of_runs_does_not_matter() -> None:
    runs = [{"rounds": "5"}, {"rounds": "5", "local.lr": "0.1"}, {}, {"model.clusters": "8", "rounds": "5"}]
    found = set()
    for start in range(len(runs)):
        distinctions = Distinctions()
        for run in (*runs[start:], *runs[:start]):
            distinctions = distinctions.with_run(run)
        found.add(distinctions.settings)
        assert Distinctions.from_tags({DISTINCTIONS: distinctions.to_json()}) == distinctions
    assert found == {("local.lr", "model.clusters", "rounds")}
    same = Distinctions().with_run({"rounds": "5"}).with_run({"rounds": "5"})
    assert same.settings == (), "what all runs have in common tells none apart"
    assert Distinctions.from_tags({DISTINCTIONS: "broken"}) == Distinctions()


def test_names_are_short_and_unambiguous() -> None:
    values = {"local.lr": "0.00100", "method.start": "None", "model.start": "random", "rounds": "5", "x": "y" * 90}
    differing = ["local.lr", "method.start", "model.start", "other.setting", "rounds"]
    name = run_name(values, differing, "fedcc digits iid seed 0")
    assert name == "fedcc digits · lr 0.001 · method.start none · model.start random · rounds 5 · iid seed 0"
    assert title_in(name) == "fedcc digits iid seed 0"
    assert run_name(values, [], "fedcc digits iid") == "fedcc digits iid" == title_in("fedcc digits iid")
    assert run_name(values, ["x"], "fedcc digits iid") == f"fedcc digits · x {'y' * 23}… · iid"
    many = {f"section.setting_{number}": "1" for number in range(99)}
    name = run_name(many, many, "fedcc digits iid")
    assert len(name) == MAX_NAME_CHARACTERS
    assert name.endswith("… · iid")
    assert [value_in_name(value) for value in (True, None, 1e-5, "0.5")] == ["true", "none", "1e-05", "0.5"]


def names_of(client: MlflowClient) -> dict[str, str]:
    """The name in MLflow of each run, by that of its folder."""
    found = client.search_runs(["1"])
    return {run.data.tags["shoal.run"]: run.info.run_name for run in found}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunFolder]]:
    """Three runs that differ in rounds and learning rate, in a home of their own that later tests add a run to."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("three")
        patch.setenv("SHOAL_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(home)
        yield [run_with(**changes) for changes in ({"rounds": 1}, {"rounds": 2}, {"local": {"lr": 0.01}})]


def run_with(**changes: Any) -> RunFolder:
    fixed = {"tracking": ON, "data": {"limit": 80}, "rounds": 1}
    run = new_run(make_settings(merge(SMALL, fixed, changes)))
    drive(run)
    return run


def test_runs_can_be_told_apart_by_names_and_columns(three: list[RunFolder]) -> None:
    client = MlflowClient(store_uri(places.mlflow_store()))
    first, second, third = (run.name for run in three)
    lr = f"{three[0].settings().local.lr:g}"
    tail = title(three[0].settings()).removeprefix("fedpnp digits ")
    assert names_of(client) == {
        first: f"fedpnp digits · lr {lr} · rounds 1 · {tail}",
        second: f"fedpnp digits · lr {lr} · rounds 2 · {tail}",
        third: f"fedpnp digits · lr 0.01 · rounds 1 · {tail}",
    }
    tags = client.get_experiment("1").tags
    columns = json.loads(json.loads(tags[VIEW_TAG])["state"])["selectedColumns"]
    assert columns == [
        "tags.`verdict`",
        "metrics.`score/acc`",
        "metrics.`score/nmi`",
        "params.`local.lr`",
        "params.`rounds`",
        "params.`method.name`",
        "params.`data.name`",
        "params.`partition.kind`",
        "params.`partition.clients`",
        "params.`seed`",
        "attributes.`Dataset`",
    ]
    known = client.search_runs(["1"])[0].data
    for column in columns[:-1]:
        kind, name = column.split(".", 1)
        assert name.strip("`") in getattr(known, kind), "a column that no run has"
    assert tags["mlflow.experiment.primaryMetric.name"] == "score/acc"


def test_a_name_that_a_person_gave_stays(three: list[RunFolder]) -> None:
    client = MlflowClient(store_uri(places.mlflow_store()))
    mine = three[0].status().tracking.mlflow_run
    client.update_run(mine, name="the good one")
    run = run_with(model={"clusters": 7})
    found = names_of(client)
    assert found[three[0].name] == "the good one"
    lr = f"{three[0].settings().local.lr:g}"
    assert found[three[1].name].startswith(f"fedpnp digits · lr {lr} · clusters as classes · rounds 2 · ")
    assert found[run.name].startswith(f"fedpnp digits · lr {lr} · clusters 7 · rounds 1 · ")


def test_runs_without_labels_have_columns_of_their_own_scores() -> None:
    distinctions = Distinctions().with_run({}, ["neighbour_agreement", "silhouette"])
    state = json.loads(json.loads(view(distinctions))["state"])
    columns = state["selectedColumns"]
    assert all(state["columnWidths"][name] >= 6 * len(name.split(".", 1)[1]) for name in columns[1:3])
    assert columns[1:3] == ["metrics.`score/neighbour_agreement`", "metrics.`score/silhouette`"]
    assert "metrics.`score/acc`" not in columns


def test_an_experiment_with_nights_shows_what_they_decided() -> None:
    distinctions = Distinctions().with_run({}, ["acc"])
    assert "night" not in view(distinctions)
    with_night = distinctions.with_run({}, ["acc"], night=True).with_run({"rounds": "3"}, ["acc"])
    columns = json.loads(json.loads(view(with_night))["state"])["selectedColumns"]
    assert columns[:3] == ["tags.`verdict`", "tags.`shoal.night.decision`", "metrics.`score/acc`"]
    assert Distinctions.from_tags({DISTINCTIONS: with_night.to_json()}) == with_night
