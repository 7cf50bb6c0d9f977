"""Windows of time series as small line plots, wherever images are shown as thumbnails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from shoal.data.sets.prepared import Prepared

WIDTH = 96
HEIGHT = 64
"""Pixels of a plot."""
MARGIN = 3
INKS = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75))
"""Colours of the channels, in turn."""
MEASURED = 2000
"""Windows from which the range of each channel is read."""

Painter = Callable[[np.ndarray], np.ndarray]
"""From a sample as it is stored to an image uint8 (1 or 3, height, width)."""


def painter_of(prepared: Prepared) -> Painter:
    """Return a function that draws a sample of a set of images or windows.

    All windows have one scale, so that a high one looks high: from the lowest to the highest value of each channel.
    """
    if prepared.manifest.kind != "series":
        return np.asarray
    some = np.asarray(prepared.train_x[:MEASURED])
    low = some.min(axis=(0, 2))
    high = some.max(axis=(0, 2))
    span = np.where(high > low, high - low, 1.0)

    def paint(window: np.ndarray) -> np.ndarray:
        return plot((np.asarray(window) - low[:, None]) / span[:, None])

    return paint


def plot(window: np.ndarray) -> np.ndarray:
    """Return a line plot uint8 (3, 64, 96) of a window (channels, length) with values from 0 to 1."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    across = np.linspace(MARGIN, WIDTH - 1 - MARGIN, window.shape[1])
    for number, channel in enumerate(window):
        up = HEIGHT - 1 - MARGIN - np.clip(channel, 0, 1) * (HEIGHT - 1 - 2 * MARGIN)
        points = list(zip(across.tolist(), up.tolist(), strict=True))
        pen.line(points, fill=INKS[number % len(INKS)], width=1)
    return np.asarray(image).transpose(2, 0, 1).copy()
