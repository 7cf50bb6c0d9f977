"""Textures in two random colours: noise of three grains, stripes, weave, dots, bricks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from shoal_research.unseen.samples import two_colours, with_noise

SIDE = 64
NOISE = 28.0
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE].astype(np.float64)
Texture = Callable[[np.random.Generator], np.ndarray]
"""Random numbers to a pattern in [0, 1], (SIDE, SIDE)."""


def grain(generator: np.random.Generator) -> np.ndarray:
    """Return noise of single pixels."""
    return generator.random((SIDE, SIDE))


def smooth(generator: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Return smooth noise, of a width in pixels between two bounds."""
    noise = grain(generator)
    blurred: np.ndarray = gaussian_filter(noise, generator.uniform(low, high), mode="wrap")
    return blurred


def clouds(generator: np.random.Generator) -> np.ndarray:
    """Return smooth noise, stretched to [0, 1]."""
    pattern = smooth(generator, 5, 8)
    stretched: np.ndarray = (pattern - pattern.min()) / np.ptp(pattern)
    return stretched


def spots(generator: np.random.Generator) -> np.ndarray:
    """Return noise cut into irregular islands."""
    pattern = smooth(generator, 2, 3)
    islands: np.ndarray = pattern > np.quantile(pattern, generator.uniform(0.55, 0.75))
    return islands


def stripes(generator: np.random.Generator) -> np.ndarray:
    """Return stripes in any direction."""
    angle = generator.uniform(0, np.pi)
    along = np.cos(angle) * COLUMNS + np.sin(angle) * ROWS
    wave: np.ndarray = 0.5 + 0.5 * np.sin(2 * np.pi * (along / generator.uniform(7, 13) + generator.random()))
    return wave


def weave(generator: np.random.Generator) -> np.ndarray:
    """Return horizontal and vertical threads that pass over and under each other."""
    thread = generator.uniform(6, 10)
    across, down = (COLUMNS, ROWS) + generator.uniform(0, thread, 2)[:, None, None]
    across /= thread
    down /= thread
    over = (np.floor(across) + np.floor(down)) % 2 == 0
    threads: np.ndarray = np.where(over, np.abs(np.sin(np.pi * across)), 0.45 * np.abs(np.sin(np.pi * down)))
    return threads


def dots(generator: np.random.Generator) -> np.ndarray:
    """Return round dots on a turned grid."""
    angle = generator.uniform(0, np.pi / 2)
    step = generator.uniform(9, 14)
    across = (np.cos(angle) * COLUMNS - np.sin(angle) * ROWS) / step + generator.random()
    down = (np.sin(angle) * COLUMNS + np.cos(angle) * ROWS) / step + generator.random()
    discs: np.ndarray = np.hypot(across % 1 - 0.5, down % 1 - 0.5) < 0.3
    return discs


def bricks(generator: np.random.Generator) -> np.ndarray:
    """Return rows of bricks with joints."""
    height = generator.uniform(8, 12)
    width = generator.uniform(1.7, 2.3) * height
    down = (ROWS + generator.uniform(0, height)) / height
    across = COLUMNS / width + 0.5 * (np.floor(down) % 2) + generator.random()
    stones: np.ndarray = (down % 1 >= 0.2) & (across % 1 >= 0.2 * height / width)
    return stones


TEXTURES: tuple[Texture, ...] = (grain, clouds, spots, stripes, weave, dots, bricks)
CLASSES = tuple(texture.__name__ for texture in TEXTURES)


def texture(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the texture of a class in 64 x 64 pixels in colour."""
    pattern = TEXTURES[label](generator)[:, :, None]
    low, high = np.array(two_colours(generator, 40), dtype=np.float64)
    image = Image.fromarray((low + pattern * (high - low)).round().astype(np.uint8))
    return with_noise(image, NOISE, generator)
