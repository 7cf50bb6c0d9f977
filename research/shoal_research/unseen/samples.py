"""The samples of a set before they are written as a user's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

SUPERSAMPLING = 4
"""Drawings are made at so many times their size, and reduced: edges are then smooth."""


@dataclass(frozen=True)
class Samples:
    """Images or the rows of a table.

    Attributes:
        x: images uint8 (n, height, width) or (n, height, width, 3), or rows float64 (n, columns).
        label: the class of each, int (n,).
        classes: names of the classes.
        columns: names of the columns; None for images.
    """

    x: np.ndarray
    label: np.ndarray
    classes: tuple[str, ...]
    columns: tuple[str, ...] | None = None


DrawOne = Callable[[int, np.random.Generator], Image.Image]
"""(class, random numbers) to an image."""


def draw_each(draw: DrawOne, label: np.ndarray, classes: Sequence[str], generator: np.random.Generator) -> Samples:
    """Return one drawn image for each label (n,)."""
    images = [np.asarray(draw(int(each), generator)) for each in label]
    return Samples(np.stack(images), label, tuple(classes))


def with_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """Return an image with Gaussian noise of deviation `sigma`, in grey levels of 256."""
    pixels = np.asarray(image).astype(np.float64)
    noisy = pixels + generator.normal(0, sigma, pixels.shape)
    return Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8))


def random_colour(generator: np.random.Generator) -> tuple[int, int, int]:
    """Return a random colour, red, green and blue from 0 to 255."""
    red, green, blue = generator.integers(0, 256, 3)
    return int(red), int(green), int(blue)


def two_colours(generator: np.random.Generator, distance: float = 130.0) -> tuple[tuple[int, int, int], ...]:
    """Return two random colours whose luminances differ by at least `distance` grey levels in 256."""
    while True:
        pair = (random_colour(generator), random_colour(generator))
        if abs(luminance(pair[0]) - luminance(pair[1])) >= distance:
            return pair


def luminance(colour: tuple[int, int, int]) -> float:
    """Return the luminance of a colour, from 0 to 255."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
