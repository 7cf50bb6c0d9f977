"""Windows are drawn as line plots of one scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shoal.data.sets.prepared import Manifest, PreparedSet, open_prepared, write_prepared
from shoal.engine.settings import places
from shoal.review.pages.cluster_sheets import HEIGHT, WIDTH, draw_cluster_sheets, painter_of
from shoal.review.pages.report import drawn_channels, write_report
from tests.added_sets import add_set
from tests.review.pages.test_report import judged


def rising(folder: Path) -> PreparedSet:
    """A window that rises from 0 to 1, and one that stays at 1."""
    x = np.stack([np.linspace(0, 1, 20), np.ones(20)])[:, None].astype(np.float32)
    manifest = Manifest("waves", "series", (1, 20), 2, 2, 0, "made", "none", ("rising", "flat"))
    write_prepared(folder / "waves", manifest, {"train_x": x, "train_y": np.array([0, 1])})
    return open_prepared(folder / "waves")


def test_a_plot_shows_low_values_low_and_all_windows_at_one_scale(tmp_path: Path) -> None:
    prepared = rising(tmp_path)
    paint = painter_of(prepared)
    plots = [paint(np.asarray(window)).min(axis=0) < 255 for window in prepared.train_x]
    assert all(plot.shape == (HEIGHT, WIDTH) for plot in plots)
    rows = [np.array([np.flatnonzero(plot[:, column]).mean() for column in (4, WIDTH - 5)]) for plot in plots]
    assert rows[0][0] > HEIGHT * 0.8, "the lowest value lies at the bottom"
    assert rows[0][1] < HEIGHT * 0.2
    assert np.abs(rows[1] - 3).max() <= 1, "as high as the highest value of the other"


@pytest.mark.long
def test_the_report_of_windows_names_its_lines(home: Path, small: Callable[..., Any]) -> None:
    times = pd.date_range("2026-01-01", periods=24 * 12, freq="h")
    hours = np.arange(len(times))
    rows = [
        pd.DataFrame({"time": times, "client": site, "kw": np.sin(hours / shift), "°C <inside>": hours % 24})
        for site, shift in (("north", 3.8), ("south", 5.0))
    ]
    pd.concat(rows).to_csv(home / "loads.csv", index=False)
    add_set(home / "loads.csv", "loads", places.store(), window="24h", time_column="time")
    data = {"name": "loads", "limit": None}
    partition = {"kind": "by_column", "column": "client", "clients": 0}
    run = judged(small(method={"name": "kmeans"}, data=data, partition=partition, rounds=1, model={"clusters": 2}))
    assert drawn_channels(run) == [("kw", "rgb(31, 119, 180)"), ("°C <inside>", "rgb(255, 127, 14)")]
    draw_cluster_sheets(run)
    page = write_report(run).read_text()
    assert "Windows of each cluster" in page
    assert "■</span> °C &lt;inside&gt;." in page
