"""Windows are drawn as line plots of one scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from shoal.data.prepared import Manifest, Prepared, open_prepared, write_prepared
from shoal.review.pages.contact_sheet import contact_sheet
from shoal.review.pages.window_pictures import HEIGHT, WIDTH, painter_of


def rising(folder: Path) -> Prepared:
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


def test_windows_have_a_contact_sheet(tmp_path: Path) -> None:
    sheet = Image.open(contact_sheet(rising(tmp_path), tmp_path / "sheet.png"))
    assert sheet.height > 2 * HEIGHT
    assert np.asarray(sheet).min() < 128
