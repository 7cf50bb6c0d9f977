"""Runs on a set of one's own are divided by its clients, and call them by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.sets.prepare import prepare
from shoal.engine.settings import places
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.client_names import client_names, named
from shoal.engine.store.run_folder import RunFolder
from shoal.lifecycle.preparing import prepare_partition
from shoal.lifecycle.starting import find_like, new_run
from shoal.review.pages.figures import draw_figures
from tests.added_sets import add_set

SITES = ["cork", "dover", "evora"]


@pytest.fixture
def own(home: Path, small: Callable[..., Any]) -> Callable[..., Any]:
    """Makes settings of a run on a set of three named sites."""
    draw = np.random.default_rng(0)
    for site in SITES:
        (home / "photos" / site).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(home / "photos" / site / f"{i}.png")
    add_set(home / "photos", "photos", places.store())

    def make(**changes: Any) -> Any:
        data, partition = {"name": "photos", "limit": None}, changes.pop("partition", {"kind": "auto"})
        settings = small(data=data, model={"encoder": "tiny-conv", "clusters": 2}, rounds=1, **changes)
        return make_settings({**settings.to_json(), "partition": partition})

    return make


def test_own_clients_unless_told_otherwise(own: Callable[..., Any]) -> None:
    run = new_run(own())
    assert (run.settings().partition.kind, run.settings().partition.clients) == ("by_column", 0)
    assert client_names(run) == SITES
    assert find_like(own()) is not None
    told = new_run(own(partition={"kind": "iid", "clients": 4}))
    assert told.settings().partition.kind == "iid"
    assert client_names(told) == ["0", "1", "2", "3"]
    assert client_names(told, "client {}")[2] == "client 2"
    folder, partition = prepare_partition(own(), prepare("photos", places.store()))
    assert "by_column" in folder.name
    assert partition.client_names == tuple(SITES)


def test_a_set_whose_clients_have_other_names_is_dealt_again(own: Callable[..., Any], home: Path) -> None:
    run = new_run(own())
    (home / "photos" / "cork").rename(home / "photos" / "arles")
    add_set(home / "photos", "photos", places.store(), force=True)
    again = new_run(own())
    assert again.lineage().data.digest == run.lineage().data.digest
    assert client_names(again) == ["arles", *SITES[1:]]
    assert client_names(run) == SITES


def test_names_where_all_are_pooled_or_the_partition_is_gone(own: Callable[..., Any]) -> None:
    assert client_names(new_run(own(method={"name": "kmeans"}))) == ["all clients"]
    run = new_run(own())
    run.set_lineage(partition=replace(run.lineage().partition, folder=str(run.path / "gone")))
    run.set_tables({"clients": pd.DataFrame([{"round": 1, "client": 2}])})
    run.set_finished(1, "0" * 64)
    assert client_names(run, "client {}") == ["client 0", "client 1", "client 2"]
    assert named(["a"], 4) == "4"


def test_figures_name_the_clients(own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(own())
    rows = [{"round": r, "client": k, "loss": 1.0 / r} for r in (1, 2) for k in range(3)]
    run.set_tables({"clients": pd.DataFrame(rows)})
    run.set_finished(2, "0" * 64)
    drawn: dict[str, list[str]] = {}

    def note(figure: Any, path: Path) -> Path:
        (axes,) = figure.axes
        drawn[path.stem] = axes.get_legend_handles_labels()[1]
        return path

    monkeypatch.setattr("shoal.review.pages.figures.save", note)
    draw_figures(RunFolder(run.path))
    assert drawn["losses"] == SITES


def test_a_set_that_dvc_has_not_pulled(own: Callable[..., Any]) -> None:
    (places.store() / "own" / "theirs.dvc").write_text("outs: []\n")
    with pytest.raises(DataError, match=r"DVC keeps, and its files are not here: run `dvc pull .*theirs\.dvc`"):
        new_run(make_settings({**own().to_json(), "data": {"name": "theirs"}}))
