"""Digits of a seven-segment display, small and grey, with worn segments and noise."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from shoal_research.unseen.samples import SUPERSAMPLING, Samples, draw_each, with_noise

CLASSES = tuple("0123456789")
SEGMENTS = {
    "a": ((0, 0), (1, 0)),
    "b": ((1, 0), (1, 1)),
    "c": ((1, 1), (1, 2)),
    "d": ((0, 2), (1, 2)),
    "e": ((0, 1), (0, 2)),
    "f": ((0, 0), (0, 1)),
    "g": ((0, 1), (1, 1)),
}
"""The ends of each segment, in columns and rows."""
LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""The segments of each digit."""
SIDE = 16
NOISE = 22.0


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one grey image of 16 x 16 pixels for each label."""
    return draw_each(display, label, CLASSES, generator)


def display(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw a digit: moved, slanted, with segments of uneven brightness."""
    side = SIDE * SUPERSAMPLING
    ground = int(generator.integers(10, 60))
    image = Image.new("L", (side, side), ground)
    pen = ImageDraw.Draw(image)
    width = side * generator.uniform(0.32, 0.42)
    height = side * generator.uniform(0.32, 0.38)
    left = (side - width) / 2 + generator.uniform(-0.08, 0.08) * side
    top = (side - 2 * height) / 2 + generator.uniform(-0.06, 0.06) * side
    slant = generator.uniform(-0.05, 0.2) * height
    for segment in LIT[label]:
        brightness = int(generator.uniform(120, 255))
        ends = [(left + column * width + (1 - row) * slant, top + row * height) for column, row in SEGMENTS[segment]]
        pen.line(ends, fill=brightness, width=round(side * 0.11))
    return with_noise(image.resize((SIDE, SIDE), Image.Resampling.BOX), NOISE, generator)
