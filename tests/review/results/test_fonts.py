"""Letters in pictures: each in a font that has it, and no name is read as a formula."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image

from shoal.review.pages.contact_sheet import Block, draw_sheet
from shoal.review.results import fonts
from shoal.review.results.fonts import make_drawable


@pytest.fixture
def only_font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a font with two letters, the only one beside DejaVu Sans."""
    path = tmp_path / "two.ttf"
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "east", "capital"])
    builder.setupCharacterMap({ord("東"): "east", ord("京"): "capital"})
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys([".notdef", "east", "capital"], square))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", "east", "capital"], (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Two Letters", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    fontManager.addfont(path)
    monkeypatch.setattr(fonts, "families", lambda: ["DejaVu Sans", "Two Letters"])
    yield path
    fontManager.ttflist[:] = [entry for entry in fontManager.ttflist if entry.name != "Two Letters"]


def test_each_letter_is_drawn_in_a_font_that_has_it(only_font: Path) -> None:
    figure = Figure(figsize=(1, 1), dpi=72)
    figure.text(0.1, 0.5, "東", fontsize=20)
    make_drawable(figure)
    file = io.BytesIO()
    figure.savefig(file)
    black = np.argwhere(np.asarray(Image.open(file).convert("L")) < 128)
    assert np.ptp(black, axis=0).tolist() == [13, 13]  # a square of 0.7 of 20 pixels


def test_a_figure_with_odd_names_is_drawn_without_a_warning(tmp_path: Path, only_font: Path) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], label="東京 上海 $a_$b\\u")
    axes.plot([1, 0], label="mon$ey and $frac{\udcff")
    axes.set_yticks([0, 1], ["東\nx", "京y"])
    legend = axes.legend()
    make_drawable(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(tmp_path / "figure.png")
    assert legend.get_texts()[1].get_text() == "mon$ey and $frac{\\udcff"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["東\nx", "京y"]


def test_a_sheet_takes_any_file_name(tmp_path: Path) -> None:
    image = np.zeros((1, 8, 8), dtype=np.uint8)
    names = ["a\nb.png", "\udcff.png", "上.png", "\x1b[2J.png"]
    block = Block("all", [image] * 4, [(name, "c\nd") for name in names])
    assert draw_sheet(tmp_path / "sheet.png", "a\ntitle", ["from \udcff"], [block]).stat().st_size
