"""Letters in pictures: each text has a font with its letters, and what no font has is written as its escape.

DejaVu Sans comes with matplotlib and has the alphabets of Europe. Letters that it lacks, such as those of Chinese,
Japanese and Korean, come from the extra `fonts`, or from a font of the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from PIL import ImageDraw, ImageFont

from shoal.core.errors import escaped

PACKAGED = ("paperang_p2_fonts_cjk", "fonts/wqy-microhei.ttc")
"""The package of the extra `fonts`, and its font: WenQuanYi Micro Hei, under the Apache licence."""
INSTALL = "pip install paperang-p2-fonts-cjk"
BROAD = ("CJK", "Unicode", "Fallback", "PingFang", "Gothic", "msyh", "YuGoth", "malgun", "wqy", "Noto")
"""Parts of the names of system fonts that have many letters."""
MAX_SYSTEM_FONTS = 100
"""System fonts that are searched for a letter: each must be opened once."""
MAX_LETTERS_NAMED = 10
"""Letters without a font that a sentence names."""


def font_file() -> Path:
    """Return the file of the font that pictures use wherever it has all letters: DejaVu Sans."""
    return Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"


def other_font_files() -> Iterator[Path]:
    """Yield the files of other fonts: the extra's, then some of the system's, those of many scripts first."""
    package = find_spec(PACKAGED[0])
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / PACKAGED[1]
    # Those of matplotlib itself have no letters that DejaVu Sans lacks.
    own = matplotlib.get_data_path()
    files = {entry.fname for entry in fontManager.ttflist if not entry.fname.startswith(own)}
    ordered = sorted(files, key=lambda file: (not any(word in file for word in BROAD), file))
    yield from map(Path, ordered[:MAX_SYSTEM_FONTS])


@cache
def letters(file: Path) -> frozenset[int]:
    """Return the code points that a font has a letter for; none where its file cannot be read."""
    try:
        return frozenset(FT2Font(str(file)).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


@cache
def file_with(letter: str) -> Path | None:
    """Return the first font that has a letter; None where no font has it."""
    for file in (font_file(), *other_font_files()):
        if ord(letter) in letters(file):
            return file
    return None


def files_for(text: str) -> list[Path]:
    """Return the fonts that the letters of a text need, in the order in which they need them, DejaVu Sans first."""
    found = {font_file(): None}
    for letter in text:
        if letter.isprintable() and (file := file_with(letter)) is not None:
            found[file] = None
    return list(found)


def runs_of(text: str) -> list[tuple[Path, str]]:
    """Return the parts of a text that are each drawn in one font, with the file of that font.

    Args:
        text: without letters that no font has, see `drawable`.
    """
    parts: list[tuple[Path, str]] = []
    for letter in text:
        file = file_with(letter) or font_file()
        if parts and parts[-1][0] == file:
            parts[-1] = (file, parts[-1][1] + letter)
        else:
            parts.append((file, letter))
    return parts


def text_length(text: str, size: int) -> float:
    """Return how many pixels wide a text is.

    Args:
        text: without letters that no font has, see `drawable`.
        size: of its letters, in pixels.
    """
    return sum(font(size, file).getlength(part) for file, part in runs_of(text))


def write(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int,
    colour: str | tuple[int, int, int],
    *,
    middle: bool = False,
) -> None:
    """Write a text on an image, each letter in the first font that has it.

    Args:
        pen: draws on the image.
        place: left end and top of the line in pixels; with `middle` the line's middle.
        text: without letters that no font has, see `drawable`.
        size: of its letters, in pixels.
        colour: of its letters.
        middle: see `place`.
    """
    left, top = place
    above, below = font(size).getmetrics()
    base = top + above
    if middle:
        base = top + (above - below) / 2
    for file, part in runs_of(text):
        face = font(size, file)
        pen.text((left, base), part, fill=colour, font=face, anchor="ls")
        left += face.getlength(part)


@cache
def font(size: int, file: Path | None = None) -> ImageFont.FreeTypeFont:
    """Return a font in a size in pixels; by default DejaVu Sans."""
    return ImageFont.truetype(str(file or font_file()), size)


def drawable(text: str) -> str:
    r"""Return a text on one line in which what cannot be drawn is written as its escape.

    >>> print(drawable("Łódź"), drawable("\ue123"), drawable("a\nb"))
    Łódź \ue123 a\nb
    """
    return "".join(c if file_with(c) is not None else c.encode("unicode_escape").decode("ascii") for c in escaped(text))


def missing_letters(texts: Iterable[str]) -> str:
    """Return the sentence about letters of some texts that no font has; empty where every letter has one.

    Args:
        texts: names as pictures show them.
    """
    missing = sorted({letter for text in texts for letter in escaped(text) if file_with(letter) is None})
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
    """Give each text of a figure the fonts that its letters need, and replace what none has; line ends stay.

    A text with a dollar sign is a name, and no formula, unless matplotlib itself wrote it at the ticks of an axis.
    """
    for text in figure.findobj(Text):
        words = text.get_text()
        text.set_text(lines_drawable(words))
        files = files_for(words)
        if len(files) > 1:
            text.set_fontfamily([family_of(file) for file in files])
        if "$" in words and "mathdefault" not in words:
            text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            # Names at ticks are made again whenever the figure is drawn.
            files = files_for("".join(formatter.format_ticks(list(axis.get_majorticklocs()))))
            if len(files) > 1:
                axis.set_tick_params(labelfontfamily=[family_of(file) for file in files])
            vars(formatter)["format_ticks"] = partial(drawable_ticks, formatter.format_ticks)


@cache
def family_of(file: Path) -> str:
    """Return the name by which matplotlib knows a font, and register it there."""
    if not any(entry.fname == str(file) for entry in fontManager.ttflist):
        fontManager.addfont(str(file))
    return str(FontProperties(fname=str(file)).get_name())


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
