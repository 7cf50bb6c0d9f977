"""Letters in pictures: none is missing without a word, and no name is read as a formula."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from shoal.review.pages.cluster_sheets import Block, draw_sheet
from shoal.review.results import fonts
from shoal.review.results.fonts import (
    drawable,
    files_for,
    font,
    font_file,
    make_drawable,
    missing_letters,
    text_length,
    write,
)


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
    monkeypatch.setattr(fonts, "other_font_files", lambda: iter([path]))
    fonts.file_with.cache_clear()
    yield path
    fonts.file_with.cache_clear()


def test_what_no_font_has_a_letter_for_is_escaped(only_font: Path) -> None:
    assert drawable("Łódź Ωж") == "Łódź Ωж"
    assert drawable("東上\n\udcff") == "東\\u4e0a\\n\\udcff"


def test_letters_without_a_font_are_named_once_in_a_sentence(only_font: Path) -> None:
    assert missing_letters(["Köln", "東京", "Zürich"]) == ""
    sentence = missing_letters(["東上", "上海"])
    assert sentence.startswith("Pictures write 2 letters as codes such as \\u4e0a, since no font here has them (上 海)")
    assert "pip install paperang-p2-fonts-cjk" in sentence


def test_each_letter_is_drawn_in_a_font_that_has_it(only_font: Path) -> None:
    assert files_for("Köln") == [font_file()]
    assert files_for("Köln 東") == [font_file(), only_font]
    assert text_length("東京", 20) == pytest.approx(32, abs=1)  # 0.8 of 20 pixels for each
    assert text_length("ab東", 20) == text_length("ab", 20) + text_length("東", 20)
    image = Image.new("L", (60, 40), 255)
    write(ImageDraw.Draw(image), (10, 5), "東", 20, 0)
    black = np.argwhere(np.asarray(image) < 128)
    assert black[:, 1].min() == 10
    assert np.ptp(black, axis=0).tolist() == [13, 13]  # a square of 0.7 of 20 pixels
    assert black[:, 0].max() == 5 + font(20).getmetrics()[0] - 1  # on the line of DejaVu Sans
    both = Image.new("L", (80, 40), 255)
    write(ImageDraw.Draw(both), (10, 5), "東 京", 20, 0)
    right = np.argwhere(np.asarray(both) < 128)[:, 1].max()
    assert right == pytest.approx(10 + text_length("東 ", 20) + 13, abs=1)


def test_a_figure_with_odd_names_is_drawn_without_a_warning(tmp_path: Path, only_font: Path) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], label="東京 上海 $a_$b\\u")
    axes.plot([1, 0], label="mon$ey and $frac{")
    axes.set_yticks([0, 1], ["写\nx", "京y"])
    axes.legend()
    make_drawable(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(tmp_path / "figure.png")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["\\u5199\nx", "京y"]


def test_a_sheet_takes_any_file_name(tmp_path: Path) -> None:
    image = np.zeros((1, 8, 8), dtype=np.uint8)
    names = ["a\nb.png", "\udcff.png", "上.png", "\x1b[2J.png"]
    block = Block("all", [image] * 4, names, ["c\nd"] * 4, [0.5] * 4)
    assert draw_sheet(tmp_path / "sheet.png", "a\ntitle", ["from \udcff"], [block]).stat().st_size
