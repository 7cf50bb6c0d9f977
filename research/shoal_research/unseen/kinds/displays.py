"""Digits of a seven-segment display, small and grey, with worn segments and noise."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from shoal_research.unseen.samples import SUPERSAMPLING, with_noise

CLASSES = tuple("0123456789")
SEGMENTS = {"a": (0, 10), "b": (10, 11), "c": (11, 12), "d": (2, 12), "e": (1, 2), "f": (0, 1), "g": (1, 11)}
"""The ends of each segment: ten times the column, plus the row."""
LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""The segments of each digit."""
SIDE = 16
NOISE = 22.0


def display(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw a digit in 16 x 16 grey pixels: moved, slanted, with segments of uneven brightness."""
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
        ends = [
            (left + column * width + (1 - row) * slant, top + row * height)
            for column, row in (divmod(end, 10) for end in SEGMENTS[segment])
        ]
        pen.line(ends, fill=brightness, width=round(side * 0.11))
    return with_noise(image.resize((SIDE, SIDE), Image.Resampling.BOX), NOISE, generator)
