"""A contact sheet: blocks of images under headings, each image with its caption below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from rich.cells import cell_len

from shoal.core.errors import escaped
from shoal.engine.store.codec import writing
from shoal.review.results.fonts import families

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
    height, width, _ = np.max([thumb.shape for row in thumbs for thumb in row], axis=0)
    caption_lines = len(blocks[0].captions[0])
    width = max(width, _NAMED_WIDTH if caption_lines > 1 else MIN_SIDE)
    down = height + _CAPTION_LINE * caption_lines + _GAP
    across = width + _GAP
    right = columns * across
    top = _LINE * (len(lines) + 2)
    bottom = top + sum(_HEADING + -(-len(row) // columns) * down for row in thumbs) + _GAP
    figure = Figure(figsize=((right + _GAP) / _DPI, bottom / _DPI), dpi=_DPI)

    def write(text: str, size: int, colour: str, left: float, base: float, room: float) -> None:
        words = fit_text(escaped(text), int(room / (size * _LETTER_WIDTH)))
        style: dict[str, Any] = {"fontsize": size, "color": colour, "fontfamily": families(), "parse_math": False}
        figure.text(left, bottom - base, words, transform=None, **style)  # without one, points are pixels

    write(title, 17, _INK, _GAP, _LINE + _GAP, right)
    for row, line in enumerate(lines, start=2):
        write(line, 12, _GREY, _GAP, _LINE * row + _GAP, right)
    for block, images in zip(blocks, thumbs, strict=True):
        write(block.heading, 13, _INK, _GAP, top + _LINE, right)
        top += _HEADING
        for place, (thumb, caption) in enumerate(zip(images, block.captions, strict=True)):
            left = _GAP + place % columns * across
            base = top + place // columns * down + height
            inset = (height - thumb.shape[0]) // 2
            beside = (width - thumb.shape[1]) // 2
            figure.figimage(thumb, left + beside, bottom - base + height - thumb.shape[0] - inset)
            for number, line in enumerate(caption, start=1):
                write(line, 10, _GREY, left, base + _CAPTION_LINE * number - 3, width)
        top += -(-len(images) // columns) * down
    return figure


def draw_sheet(path: Path, title: str, lines: Sequence[str], blocks: Sequence[Block], columns: int = COLUMNS) -> Path:
    """Draw a sheet (`contact_sheet`) as a PNG, whose folder is made.

    Raises:
        StoreError: it cannot be written.
    """
    with writing(path):
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
    half = letters // 2
    short = text
    while cell_len(short) > letters and half:
        short = f"{text[:half]}…{text[-half:]}"
        half -= 1
    return short
