import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from shoal.core.errors import DataError
from shoal.review.pages.contact_sheet import Block, contact_sheet, fit_text, thumbnail
from shoal.review.pages.data_sheet import draw_data_sheet, drawn_samples

CELL = 48 + 6
"""Pixels from an image of 8 pixels a side to the next one."""
BLOCK = 26 + CELL


def drawn(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_a_sheet_shows_a_draw_of_each_clients_images():
    own = np.arange(100, 200)
    drawn_of = {seed: drawn_samples(own, 12, seed, block=3) for seed in (0, 1)}
    for positions in drawn_of.values():
        assert len(set(positions.tolist())) == 12
        assert set(positions.tolist()) <= set(own.tolist())
        assert positions[-1] >= 112, "the first files by name"
    assert drawn_of[0].tolist() != drawn_of[1].tolist()
    assert drawn_of[0].tolist() == drawn_samples(own, 12, 0, block=3).tolist()
    assert drawn_samples(own[:4], 12, 0, block=3).tolist() == own[:4].tolist()


def test_a_set_has_a_block_for_each_label(digits, build, tmp_path):
    sheet = drawn(draw_data_sheet(digits, tmp_path / "s.png", columns=5))
    top = 2 * 17
    assert sheet.shape[:2] == (top + 10 * BLOCK + 6, 5 * CELL + 6)
    first = drawn_samples(np.flatnonzero(digits.train_y == 0), 5, seed=0, block=0)[0]
    assert np.array_equal(sheet[top + 26 :: 6, 6:][:8, :48:6, 0], digits.train_x[first, 0])
    with pytest.raises(DataError, match="expected a set of images"):
        draw_data_sheet(build([0, 1], shape=(3,), kind="vector"), tmp_path / "v.png")
    assert drawn(draw_data_sheet(build(5), tmp_path / "u.png", columns=3)).shape[0] == top + BLOCK + 6


def test_a_long_name_loses_its_middle():
    assert fit_text("a/b.png", 7) == "a/b.png"
    assert fit_text("north/scan-0001.png", 11) == "north…1.png"
    assert cell_len(fit_text("東京都庁舎", 7)) <= 7, "a wide letter counts twice"


def test_images_of_any_size_become_thumbnails():
    assert thumbnail(np.zeros((1, 8, 8), dtype=np.uint8)).shape == (48, 48, 3)
    assert thumbnail(np.zeros((3, 60, 50), dtype=np.uint8)).shape == (60, 50, 3)
    assert thumbnail(np.zeros((3, 400, 200), dtype=np.uint8)).shape == (96, 48, 3)


def test_blocks_wrap_and_captions_lie_below():
    images = [np.zeros((1, 48, 48), dtype=np.uint8)] * 3
    figure = contact_sheet("title", [], [Block("all", images, [("0.1",), ("0.2",), ("0.3",)])], columns=2)
    heights = {text.get_text(): text.get_position()[1] for text in figure.texts}
    assert heights["title"] > heights["all"] > heights["0.1"] == heights["0.2"] > heights["0.3"]
