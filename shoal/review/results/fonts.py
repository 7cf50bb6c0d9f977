"""Letters in pictures: every name can be drawn, and what the font has no letter for is written as its escape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from PIL import ImageFont

from shoal.core.errors import escaped


def font_file() -> Path:
    """Return the file of the font that every picture uses: DejaVu Sans, which matplotlib brings along."""
    return Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return the font in a size in pixels."""
    return ImageFont.truetype(str(font_file()), size)


@cache
def letters() -> frozenset[int]:
    """Return the code points that the font has a letter for."""
    return frozenset(FT2Font(str(font_file())).get_charmap())


def drawable(text: str) -> str:
    r"""Return a text on one line in which what cannot be drawn is written as its escape.

    >>> print(drawable("Łódź"), drawable("上"), drawable("a\nb"))
    Łódź \u4e0a a\nb
    """
    codes = letters()
    return "".join(c if ord(c) in codes else c.encode("unicode_escape").decode("ascii") for c in escaped(text))


def make_drawable(figure: Figure) -> None:
    """Replace what cannot be drawn in all texts of a figure; line ends stay.

    A text with a dollar sign is a name, and no formula, unless matplotlib itself wrote it at the ticks of an axis.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_text(lines_drawable(words))
        if "$" in words and "mathdefault" not in words:
            text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            # Names at ticks are made again whenever the figure is drawn.
            vars(formatter)["format_ticks"] = partial(drawable_ticks, formatter.format_ticks)


def drawable_ticks(format_ticks: Callable[[list[float]], list[str]], values: list[float]) -> list[str]:
    """Return the labels of ticks as they can be drawn.

    Args:
        format_ticks: gives the labels as they are.
        values: of the ticks.
    """
    return [lines_drawable(label) for label in format_ticks(values)]


def lines_drawable(text: str) -> str:
    """Return a text as `drawable` does, but keep its line ends."""
    return "\n".join(map(drawable, text.split("\n")))
