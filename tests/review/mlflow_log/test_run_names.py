"""Names and columns that tell the runs of an experiment apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mlflow import MlflowClient

from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.mlflow_log.embedded_store import store_uri
from shoal.review.mlflow_log.experiments import VIEW_TAG
from shoal.review.mlflow_log.run_names import MAX_NAME_CHARACTERS, chosen_settings, run_name, title, value_in_name
from tests.conftest import SMALL

ON = {"mlflow": True, "model": False}


def test_what_a_person_chose_sets_runs_apart() -> None:
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


def test_names_are_short_and_unambiguous() -> None:
    assert run_name(make_settings({"method": "fedcc"})) == title(make_settings({"method": "fedcc"}))
    server = {"server": {"name": "adam", "lr": 0.1}}
    settings = make_settings({"method": "fedcc", "local": {"lr": 0.01}, "aggregation": server})
    assert "aggregation.server.lr 0.1" in run_name(settings)
    assert "local.lr 0.01" in run_name(settings)
    many = {
        "local": {"lr": 0.01, "batch": 7, "epochs": 3, "momentum": 0.5, "weight_decay": 0.0123},
        "rounds": 123,
        "model": {"clusters": 7},
    }
    long = make_settings({"method": "fedcc", "data": {"name": "x" * 120}, "participation": {"fraction": 0.5}, **many})
    assert len(title(long)) < MAX_NAME_CHARACTERS
    assert len(run_name(long)) <= MAX_NAME_CHARACTERS
    assert run_name(long).endswith("seed 0")
    assert [value_in_name(value) for value in (True, None, 1e-5, "0.5")] == ["true", "none", "1e-05", "0.5"]


def run_with(**changes: Any) -> RunFolder:
    fixed = {"tracking": ON, "data": {"limit": 80}, "rounds": 1}
    run = new_run(make_settings(merge(SMALL, fixed, changes)))
    drive(run)
    return run


@pytest.mark.long
def test_runs_can_be_told_apart_by_names_and_columns(home: Any) -> None:
    runs = [run_with(**changes) for changes in ({"rounds": 2}, {"local": {"lr": 0.01}})]
    client = MlflowClient(store_uri(places.mlflow_store()))
    logged = client.search_runs(["1"])
    names = {run.data.tags["shoal.run"]: run.info.run_name for run in logged}
    assert names == {run.name: run_name(run.settings()) for run in runs}
    assert "rounds 2" in names[runs[0].name]
    assert "lr 0.01" in names[runs[1].name]
    columns = json.loads(json.loads(client.get_experiment("1").tags[VIEW_TAG])["state"])["selectedColumns"]
    known = {f"metrics.`{name}`" for name in logged[0].data.metrics} | {f"params.`{p}`" for p in logged[0].data.params}
    assert {"metrics.`score/acc`", "params.`method.name`", "params.`seed`"} <= known & set(columns)
