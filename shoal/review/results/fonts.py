"""The fonts of pictures: matplotlib draws each letter in the first of them that has it, and else a box.

DejaVu Sans comes with matplotlib and has the alphabets of Europe. Letters that it lacks, such as those of Chinese,
Japanese and Korean, come from the extra `fonts`, or from a font of the system.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text

from shoal.core.errors import escaped

PACKAGED = ("paperang_p2_fonts_cjk", "fonts/wqy-microhei.ttc")
"""The package of the extra `fonts`, and its font: WenQuanYi Micro Hei, under the Apache licence."""
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
warnings.filterwarnings("ignore", "Glyph .* missing from font")


@cache
def families() -> list[str]:
    """Return the names of the fonts that pictures use, in the order in which they are asked for a letter."""
    package = find_spec(PACKAGED[0])
    if package is not None and package.origin is not None:
        fontManager.addfont(Path(package.origin).parent / PACKAGED[1])
    return ["DejaVu Sans", *(name for name in BROAD if name in fontManager.get_font_names())]


def make_drawable(figure: Figure) -> None:
    """Give the texts of a figure all fonts, and write control characters as their codes; line ends stay.

    Matplotlib makes the names at ticks again whenever it draws: a caller that sets them escapes them.
    A text with a dollar sign is a name, and no formula, unless matplotlib itself wrote it at the ticks of an axis.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_text("\n".join(map(escaped, words.split("\n"))))
        text.set_fontfamily(families())
        text.set_parse_math("mathdefault" in words)
    for axes in figure.axes:
        axes.tick_params(labelfontfamily=families())
