"""A contact sheet: blocks of images under headings, each image with its caption below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.cells import cell_len

from shoal.review.results.fonts import drawable, families

COLUMNS = 10
MIN_SIDE = 48
"""Pixels: smaller images are enlarged to at least this side."""
MAX_SIDE = 96
"""Pixels: larger images are reduced to this side."""
_NAMED_WIDTH = 104
"""Pixels: minimum width of an image with a name below it."""
_GAP = 6
_HEADING = 26
"""Pixels from the top of a block to its images."""
_LINE = 17
_CAPTION_LINE = 14
"""Pixels from a line of text to the next."""
_DPI = 72
"""So that a point is a pixel."""
_LETTER_WIDTH = 0.62
"""Of a letter, as a share of its size, on average."""
_INK = "0.12"
_GREY = "0.43"


@dataclass(frozen=True)
class Block:
    """Some images under one heading.

    Attributes:
        heading: a few words.
        images: uint8 (channels, height, width) each.
        captions: lines of words below each image, as many for every image of a sheet.
    """

    heading: str
    images: Sequence[np.ndarray]
    captions: Sequence[tuple[str, ...]]


def contact_sheet(title: str, lines: Sequence[str], blocks: Sequence[Block], columns: int = COLUMNS) -> Figure:
    """Return a sheet as a figure of 72 dots per inch.

    Args:
        title: in large letters.
        lines: of text, below it.
        blocks: at least one, each with an image at least.
        columns: images side by side.
    """
    thumbs = [[thumbnail(image) for image in block.images] for block in blocks]
    caption_lines = len(blocks[0].captions[0])
    width = max(_NAMED_WIDTH if caption_lines > 1 else MIN_SIDE, *(t.shape[1] for row in thumbs for t in row))
    height = max(thumb.shape[0] for row in thumbs for thumb in row)
    cell = (height + _CAPTION_LINE * caption_lines + _GAP, width + _GAP)
    rows = sum(-(-len(row) // columns) for row in thumbs)
    top = _LINE * (len(lines) + 2)
    size = (top + _HEADING * len(blocks) + rows * cell[0] + _GAP, columns * cell[1] + _GAP)
    canvas = np.full((*size, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(size[1] / _DPI, size[0] / _DPI), dpi=_DPI)
    _write(figure, _GAP, _LINE + _GAP, title, 17, size[1] - _GAP, _INK)
    for number, line in enumerate(lines):
        _write(figure, _GAP, _LINE * (number + 2) + _GAP, line, 12, size[1] - _GAP, _GREY)
    for block, row in zip(blocks, thumbs, strict=True):
        _write(figure, _GAP, top + _LINE, block.heading, 13, size[1] - _GAP, _INK)
        top += _HEADING
        for place, (thumb, caption) in enumerate(zip(row, block.captions, strict=True)):
            left = _GAP + place % columns * cell[1]
            up = top + place // columns * cell[0]
            y = up + (height - thumb.shape[0]) // 2
            x = left + (width - thumb.shape[1]) // 2
            canvas[y : y + thumb.shape[0], x : x + thumb.shape[1]] = thumb
            for number, line in enumerate(caption, start=1):
                _write(figure, left, up + height + _CAPTION_LINE * number - 3, line, 10, left + width, _GREY)
        top += -(-len(row) // columns) * cell[0]
    figure.figimage(canvas, origin="upper")
    return figure


def draw_sheet(path: Path, title: str, lines: Sequence[str], blocks: Sequence[Block], columns: int = COLUMNS) -> Path:
    """Draw a sheet (`contact_sheet`) as a PNG, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(title, lines, blocks, columns).savefig(path, format="png")
    return path


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Return an image uint8 (channels, height, width) in the size of a sheet, uint8 (height, width, 3).

    Small images are enlarged by a whole factor.
    """
    pixels = np.broadcast_to(image[:3].transpose(1, 2, 0), (*image.shape[1:], 3))
    side = max(image.shape[1:])
    if side < MIN_SIDE:
        factor = -(-MIN_SIDE // side)
        return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    small = Image.fromarray(np.ascontiguousarray(pixels))
    small.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small)


def shown_confidence(value: float) -> str:
    """Return a confidence as it stands below an image: only a full one reads 1.00.

    >>> shown_confidence(0.994), shown_confidence(0.9951), shown_confidence(1.0)
    ('0.99', '>0.99', '1.00')
    """
    text = f"{value:.2f}"
    return ">0.99" if text == "1.00" and value < 1 else text


def fit_text(text: str, letters: int) -> str:
    """Return a text of at most some letters (a wide one counts twice); a longer one loses its middle.

    >>> fit_text("north/scan-0001.png", 11)
    'north…1.png'
    """
    if cell_len(text) <= letters:
        return text
    first = text[: letters // 2]
    last = text[-(letters // 2) :]
    while cell_len(first) + cell_len(last) >= letters and last:
        first = first[: len(last)]
        last = last[1:]
    return f"{first}…{last}"


def _write(figure: Figure, left: int, base: int, text: str, size: int, right: int, colour: str) -> None:
    """Write a text on a line between two pixels, cut to what fits there."""
    width, height = figure.get_size_inches() * _DPI
    short = fit_text(drawable(text), int((right - left) / (size * _LETTER_WIDTH)))
    figure.text(
        left / width,
        1 - base / height,
        short,
        fontsize=size,
        fontfamily=families(),
        color=colour,
        parse_math=False,
    )
