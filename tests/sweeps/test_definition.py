"""What a search file may hold, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import ShoalError
from shoal.data.sets.prepare import store_folder
from shoal.data.sets.prepared import Manifest, write_prepared
from shoal.engine.settings import places
from shoal.sweeps.search.definition import check_search, load_search, make_search

BASE: dict[str, Any] = {
    "name": "toy",
    "settings": {"method": "fedpnp", "data": {"name": "digits"}, "rounds": 2},
    "vary": {"local.lr": {"low": 1e-4, "high": 0.1, "log": True}},
}

REFUSED = [
    ({"vary": {"local.lrr": {"choices": [1, 2]}}}, "vary.local.lrr: 1 cannot be used: local.lrr: there is no such"),
    ({"vary": {"local.lr": {"low": 1, "hihg": 2}}}, "vary.local.lr.hihg: there is no such setting; did you mean high"),
    ({"vary": {"local.lr": {"low": "x", "high": 2}}}, "vary.local.lr.low: given 'x'; input should be a valid number"),
    ({"vary": {"local.lr": {"low": 1}}}, "expected choices, or low and high"),
    ({"vary": {"local.lr": {"low": 2, "high": 1}}}, "low is 2 and high 1: expected low below high"),
    ({"vary": {"local.lr": {"low": 0, "high": 1, "log": True}}}, "and with log low above 0 and no step"),
    ({"vary": {"local.lr": {"choices": [0.1, 0.1]}}}, "expected at least two choices, each of them once"),
    ({"vary": {"local.lr": {"choices": [0.1, -1]}}}, "vary.local.lr: -1 cannot be used: local.lr: given '-1'"),
    ({"vary": {"local.lr": 3}}, "vary.local.lr: given '3'; input should be a valid dictionary"),
    ({"vary": {"method.name": {"choices": ["fedcc", "fedpmp"]}}}, "'fedpmp' is not known; did you mean fedpnp"),
    ({"vary": {}}, "vary: given {}"),
    ({"vary": {"data.limit": {"low": 100, "high": 200}}}, "vary.data.limit: data cannot vary within a search"),
    (
        {"vary": {"seed": {"low": 0, "high": 2}}},
        "vary.seed: seed cannot vary within a search: give the search `seeds",
    ),
    ({"vary": {"model.clusters": {"low": 2, "high": 6}}}, "only compares clusterings with the same number of clusters"),
    ({"score": "sillouette"}, "score: 'sillouette' is not known; did you mean silhouette"),
    ({"score": "loss"}, "score: 'loss' is not known"),
    (
        {"score": "acc", "settings": {"method": "fedcc", "data": {"name": "unlabelled"}, "model": {"clusters": 2}}},
        "'acc' needs labels",
    ),
    (
        {"settings": {"method": "kmeans", "data": {"name": "digits"}}},
        "'kmeans', which trains nothing, so that local.lr",
    ),
    ({"vary": {"method.name": {"choices": ["fedcc", "auto"]}}}, "vary.method.name: 'auto' is no single method"),
    ({"settings": {"method": "fedavg", "partition": {"validation": 0.2}}}, "method 'fedavg' finds none"),
    ({"settings": {"data": {"name": "digits"}}}, "`shoal data show digits` says which one auto chooses"),
    ({"settings": {"metod": "fedpnp"}}, "metod: there is no such setting; did you mean method"),
    ({"settings": {"method": "fedpnp", "data": {"name": "nope"}}}, "there is no data set 'nope'"),
    ({"sampler": "grid"}, "vary.local.lr: a grid needs single values"),
    ({"sampler": "tpi"}, "sampler: 'tpi' is not known; did you mean tpe"),
    ({"trial": 3}, "trial: there is no such setting; did you mean trials"),
    ({"name": "../x"}, "name: given '../x'"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_what_cannot_be_carried_out_is_refused_before_any_work(
    home: Path, changes: dict[str, Any], sentence: str
) -> None:
    x = np.zeros((40, 1, 8, 8), np.uint8)
    manifest = Manifest("unlabelled", "image", (1, 8, 8), None, len(x), 0, "made here", "none")
    write_prepared(store_folder(places.store(), "unlabelled"), manifest, {"train_x": x})
    with pytest.raises(ShoalError) as told:
        check_search(make_search({**BASE, **changes}))
    assert sentence in str(told.value)
    assert not places.runs().exists()
    assert not places.searches().exists()


def test_a_file_is_read_and_its_settings_are_those_of_runs(home: Path) -> None:
    path = home / "search.yaml"
    path.write_text(
        "name: toy\nsettings: {method: fedpnp, seed: 5, local: {batch: 16}}\n"
        "vary:\n  local.lr: {low: 1.0e-4, high: 0.1, log: true}\n  method.name: {choices: [fedpnp, fedcc]}\n"
    )
    definition = load_search(path)
    assert definition.maximises
    assert not definition.uses_labels
    settings = definition.settings_with({"local.lr": 0.01, "method.name": "fedcc"}, number=2)
    assert (settings.method.name, settings.local.lr, settings.local.batch, settings.seed) == ("fedcc", 0.01, 16, 7)
    assert settings.tracking.register_as == "none"
    path.write_text("name: toy\nvary:\n  method.name: {choices: [fedpnp, fedcc]}\n")
    assert load_search(path).settings_with({"method.name": "fedcc"}).method.name == "fedcc"
    path.write_text("- name: toy\n")
    with pytest.raises(ShoalError, match="holds a list; expected keys and values"):
        load_search(path)


def test_how_many_trials_and_where_they_run_is_not_what_a_search_is(home: Path) -> None:
    one = make_search(BASE).identity()
    assert make_search({**BASE, "trials": 99, "name": "other"}).identity() == one
    elsewhere = {**BASE["settings"], "tracking": {"mlflow": False}, "workers": {"slots": 1}}
    assert make_search({**BASE, "settings": elsewhere}).identity() == one
    for changes in ({"seed": 1}, {"score": "acc"}, {"settings": {"rounds": 3}}):
        assert make_search({**BASE, **changes}).identity() != one


def test_values_are_read_by_the_type_of_their_setting(home: Path) -> None:
    path = home / "search.yaml"
    path.write_text(
        "name: 2024\nsettings: {method: fedcc, data: {name: gaussian}, workers: {graphs: off}}\n"
        "vary:\n  aggregation.server.name: {choices: [none, adam]}\n  local.lr: {low: 0.001, high: 0.1, log: yes}\n"
        "score: silhouette\nsampler: random\n"
    )
    definition = load_search(path)
    assert definition.settings_with({}).workers.graphs == "off"
    assert definition.vary["aggregation.server.name"].choices == ("none", "adam")
    assert (definition.name, definition.sampler, definition.vary["local.lr"].log) == ("2024", "random", True)
