"""The samples of a set before they are written as a user's files."""

from __future__ import annotations

from collections.abc import Callable
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


Colour = tuple[int, int, int]
"""Red, green and blue, from 0 to 255."""
DrawOne = Callable[[int, np.random.Generator], Image.Image]
"""(class, random numbers) to an image."""


def draw_each(draw: DrawOne, classes: tuple[str, ...], label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one drawn image for each label (n,)."""
    return Samples(np.stack([np.asarray(draw(int(one), generator)) for one in label]), label, classes)


def with_noise(image: Image.Image, sigma: float, generator: np.random.Generator) -> Image.Image:
    """Return an image with Gaussian noise of deviation `sigma`, in grey levels of 256."""
    pixels = np.asarray(image).astype(np.float64)
    noisy = pixels + generator.normal(0, sigma, pixels.shape)
    return Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8))


def random_colour(generator: np.random.Generator) -> Colour:
    """Return a random colour."""
    red, green, blue = generator.integers(0, 256, 3)
    return int(red), int(green), int(blue)


def two_colours(generator: np.random.Generator, distance: float = 130.0) -> tuple[Colour, Colour]:
    """Return two random colours whose luminances differ by at least `distance` grey levels in 256."""
    while True:
        first = random_colour(generator)
        second = random_colour(generator)
        if abs(luminance(first) - luminance(second)) >= distance:
            return first, second


def luminance(colour: Colour) -> float:
    """Return the luminance of a colour, from 0 to 255."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
