r"""Letters in pictures: matplotlib draws each in the first of some fonts that has it; others are written as escapes.

DejaVu Sans comes with matplotlib and has the alphabets of Europe. Letters that it lacks, such as those of Chinese,
Japanese and Korean, come from the extra `fonts`, or from a font of the system.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.text import Text

from shoal.core.errors import escaped

PACKAGED = ("paperang_p2_fonts_cjk", "fonts/wqy-microhei.ttc")
"""The package of the extra `fonts`, and its font: WenQuanYi Micro Hei, under the Apache licence."""
INSTALL = "pip install paperang-p2-fonts-cjk"
BROAD = (
    "WenQuanYi Micro Hei",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Arial Unicode MS",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Noto Sans",
)
"""Fonts of many letters, of which a system has some."""
MAX_LETTERS_NAMED = 10
"""Letters without a font that a sentence names."""


@cache
def families() -> list[str]:
    """Return the names of the fonts that pictures use, in the order in which they are asked for a letter."""
    package = find_spec(PACKAGED[0])
    if package is not None and package.origin is not None:
        fontManager.addfont(Path(package.origin).parent / PACKAGED[1])
    return ["DejaVu Sans", *(name for name in BROAD if name in fontManager.get_font_names())]


@cache
def letters() -> frozenset[int]:
    """Return the code points that pictures have a letter for."""
    return frozenset().union(*(get_font(findfont(name)).get_charmap() for name in families()))


def drawable(text: str) -> str:
    r"""Return a text on one line in which what cannot be drawn is written as its escape.

    >>> print(drawable("Łódź"), drawable("\ue123"), drawable("a\nb"))
    Łódź \ue123 a\nb
    """
    return "".join(c if ord(c) in letters() else c.encode("unicode_escape").decode("ascii") for c in escaped(text))


def missing_letters(texts: Iterable[str]) -> str:
    """Return the sentence about letters of some texts that no font has; empty where every letter has one.

    Args:
        texts: names as pictures show them.
    """
    missing = sorted({letter for text in texts for letter in escaped(text) if ord(letter) not in letters()})
    if not missing:
        return ""
    named = " ".join(missing[:MAX_LETTERS_NAMED])
    if len(missing) > MAX_LETTERS_NAMED:
        named += f" and {len(missing) - MAX_LETTERS_NAMED} more"
    return (
        f"Pictures write {len(missing)} letters as codes such as {drawable(missing[0])}, since no font here has them "
        f"({named}): {INSTALL} brings a font for Chinese, Japanese and Korean."
    )


def make_drawable(figure: Figure) -> None:
    """Give the texts of a figure all fonts, and replace what none has; line ends stay.

    Matplotlib makes the names at ticks again whenever it draws: a caller that sets them passes them through `drawable`.
    A text with a dollar sign is a name, and no formula, unless matplotlib itself wrote it at the ticks of an axis.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_text("\n".join(map(drawable, words.split("\n"))))
        text.set_fontfamily(families())
        if "$" in words and "mathdefault" not in words:
            text.set_parse_math(False)
    for axes in figure.axes:
        axes.tick_params(labelfontfamily=families())
