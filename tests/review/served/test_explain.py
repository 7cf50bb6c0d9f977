"""One cluster over its clients: the shares are of the run's own table, and the sheet shows the images themselves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from shoal.cli.console import out
from shoal.cli.explain import explain as explain_command
from shoal.core.errors import DataError
from shoal.engine.settings import places
from shoal.engine.store.run_folder import RunError, RunFolder
from shoal.lifecycle.driving import drive
from shoal.lifecycle.starting import new_run
from shoal.review.pages.cluster_sheets import draw_cluster_sheets
from shoal.review.results.clusters import TABLE
from shoal.review.served.explain import MAX_CERTAIN, MAX_UNSURE, explain
from tests.added_sets import add_set
from tests.planted_images import clustered, draw, kind_of, write_new

Make = Callable[..., Any]


@pytest.fixture
def images(home: Path, small: Make) -> RunFolder:
    """A finished run on own images of three kinds, whose clusters are those kinds."""
    return clustered(home, small, each=14)


@pytest.mark.long
def test_the_shares_are_those_of_the_cluster_table(images: RunFolder) -> None:
    table = pd.read_parquet(images.path / TABLE)
    found = explain(images, 1)
    own = table[table["cluster"] == 1]
    assert (found.samples, found.total) == (len(own), len(table))
    assert found.clients["samples"].sum() == len(own)
    assert found.clients["samples"].is_monotonic_decreasing
    for row in found.clients.itertuples():
        mine = own[own["client_name"] == row.client]
        assert row.samples == len(mine)
        assert row.share_of_client == pytest.approx(len(mine) / (table["client_name"] == row.client).sum())
        assert row.share_of_cluster == pytest.approx(len(mine) / len(own))
        assert row.mean_confidence == pytest.approx(mine["confidence"].mean())
    assert "mostly_label" not in found.clients, "there are no labels"


@pytest.mark.long
def test_the_most_and_the_least_certain_of_each_client_are_shown(images: RunFolder) -> None:
    table = pd.read_parquet(images.path / TABLE)
    found = explain(images, 0)
    for name, shown in found.shown.groupby("client_name"):
        own = table[(table["cluster"] == 0) & (table["client_name"] == name)].sort_values("confidence")
        certain, unsure = (shown[shown["shown"] == which] for which in ("certain", "unsure"))
        assert len(certain) == min(MAX_CERTAIN, math.ceil(len(own) * 2 / 3))
        assert len(unsure) == min(MAX_UNSURE, len(own) - len(certain))
        assert sorted(certain["confidence"]) == own["confidence"].tolist()[-len(certain) :]
        assert sorted(unsure["confidence"]) == own["confidence"].tolist()[: len(unsure)]
        assert len({kind_of(file) for file in shown["file"]}) == 1


@pytest.mark.long
def test_the_sheet_has_a_row_a_client_with_its_images(images: RunFolder, tmp_path: Path) -> None:
    found = explain(images, 2)
    path = found.draw(tmp_path / "deep" / "sheet.png")
    sheet = np.asarray(Image.open(path).convert("L"))
    first = found.shown.iloc[0]
    with Image.open(places.home() / "pictures" / first["file"]) as opened:
        image = np.asarray(opened).repeat(4, axis=0).repeat(4, axis=1)  # 12 pixels are drawn as 48
    windows = np.lib.stride_tricks.sliding_window_view(sheet, image.shape)
    assert (windows == image).all(axis=(2, 3)).any(), "the most certain image is on the sheet"
    fewer = Image.open(explain(images, 2).draw(tmp_path / "again.png"))
    assert fewer.height > len(found.clients) * 48


@pytest.mark.long
def test_a_set_that_has_grown_shows_the_images_and_another_one_none(images: RunFolder, tmp_path: Path) -> None:
    draw("dark", np.random.default_rng(2)).save(places.home() / "pictures" / "north" / "dark-late.png")
    add_set(places.home() / "pictures", "mine", places.store(), append=True)
    assert draw_cluster_sheets(images)
    write_new(tmp_path / "others" / "north")
    add_set(tmp_path / "others", "mine", places.store(), force=True)
    with pytest.raises(DataError, match="not shown: its set has been replaced"):
        explain(images, 0).draw(tmp_path / "sheet.png")
    assert not draw_cluster_sheets(images)


@pytest.mark.long
def test_labels_are_told_where_there_are_some(home: Path, small: Make) -> None:
    run = new_run(small(method={"name": "kmeans"}, rounds=1))
    drive(run)
    table = pd.read_parquet(run.path / TABLE)
    found = explain(run, 4)
    row = found.clients.iloc[0]
    labels = table[(table["cluster"] == 4) & (table["client_name"] == row["client"])]["label"]
    assert row["mostly_label"] == labels.mode()[0]
    assert row["label_share"] == pytest.approx((labels == labels.mode()[0]).mean())


@pytest.mark.long
def test_of_vectors_the_nearest_rows_are_told_and_nothing_is_drawn(
    home: Path, small: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"name": "gaussian", "limit": None, "options": {"samples": 60, "clusters": 3}}
    run = new_run(small(data=points, method={"name": "kfed"}, rounds=1))
    drive(run)
    found = explain(run, 0)
    with pytest.raises(DataError, match="only images and windows can be drawn: leave out --out"):
        found.draw(home / "sheet.png")
    explain_command(run.name, 0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [row["client"] for row in told["clients"]] == found.clients["client"].tolist()
    assert all(isinstance(row["distance"], float) for row in told["shown"])


@pytest.mark.long
def test_the_command_names_clients_and_files(images: RunFolder, home: Path) -> None:
    with out.capture() as said:
        explain_command(images.name, 1)
    text = said.get()
    assert all(name in text for name in ("north", "süd", "lab 3", "nearest to its centre", "--out sheet.png"))
    nearest = explain(images, 1).shown.sort_values("distance").iloc[0]
    assert nearest["file"] in text
    with out.capture() as said:
        explain_command(images.name, 1, home / "sheet.png")
    assert "contact sheet:" in said.get()
    assert (home / "sheet.png").stat().st_size


def test_what_is_not_there_is_said(images: RunFolder, home: Path, small: Make) -> None:
    with pytest.raises(RunError, match="no cluster 3: its clusters are 0, 1, 2"):
        explain(images, 3)
    with pytest.raises(RunError, match="no cluster table"):
        explain(new_run(small()), 0)
    with pytest.raises(DataError, match=r"ends in \.png"):
        explain_command(images.name, 0, home / "sheet.jpg")
