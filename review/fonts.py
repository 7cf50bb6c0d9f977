"""Letters in pictures: every name can be drawn, and what the font has no letter for is written as its escape."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter
from PIL import ImageFont

from core.errors import escaped


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
    known = letters()
    return "".join(c if ord(c) in known else c.encode("unicode_escape").decode("ascii") for c in escaped(text))


def make_drawable(figure: Figure) -> None:
    """Replace what cannot be drawn in all texts of a figure; line ends stay.

    A text with a dollar sign and no command of TeX is a name, and no formula.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_text("\n".join(map(drawable, words.split("\n"))))
        if "$" in words and "\\" not in words:
            text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FixedFormatter):
                formatter.seq = ["\n".join(map(drawable, str(name).split("\n"))) for name in formatter.seq]
