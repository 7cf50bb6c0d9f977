import numpy as np
import pytest
from rich.cells import cell_len

from shoal.core.errors import ShoalError
from shoal.review.pages.contact_sheet import Block, contact_sheet, draw_sheet, fit_text, thumbnail


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


def test_a_folder_is_no_sheet(tmp_path):
    with pytest.raises(ShoalError, match="could not be written: Is a directory"):
        draw_sheet(tmp_path, "title", [], [Block("all", [np.zeros((1, 8, 8), np.uint8)], [("a",)])])
