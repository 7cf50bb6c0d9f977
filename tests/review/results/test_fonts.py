"""Letters in pictures: none is missing without a word, and no name is read as a formula."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from shoal.review.pages.cluster_sheets import Block, draw_sheet
from shoal.review.results.fonts import drawable, make_drawable


def test_what_the_font_has_no_letter_for_is_escaped() -> None:
    assert drawable("Łódź Ωж") == "Łódź Ωж"
    assert drawable("上\n\udcff") == "\\u4e0a\\n\\udcff"


def test_a_figure_with_odd_names_is_drawn_without_a_warning(tmp_path: Path) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], label="上海 $a_$b\\u")
    axes.plot([1, 0], label="mon$ey and $frac{")
    axes.set_yticks([0, 1], ["写\nx", "y"])
    axes.legend()
    make_drawable(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(tmp_path / "figure.png")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["\\u5199\nx", "y"]


def test_a_sheet_takes_any_file_name(tmp_path: Path) -> None:
    image = np.zeros((1, 8, 8), dtype=np.uint8)
    names = ["a\nb.png", "\udcff.png", "上.png", "\x1b[2J.png"]
    block = Block("all", [image] * 4, names, ["c\nd"] * 4, [0.5] * 4)
    assert draw_sheet(tmp_path / "sheet.png", "a\ntitle", ["from \udcff"], [block]).stat().st_size
