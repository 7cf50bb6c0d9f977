"""Textures in two random colours: noise of three grains, stripes, weave, dots, bricks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from shoal_research.unseen.samples import Samples, draw_each, two_colours, with_noise

SIDE = 64
NOISE = 28.0
Texture = Callable[[np.random.Generator], np.ndarray]
"""Random numbers to a pattern in [0, 1], float64 (SIDE, SIDE)."""


def grain(generator: np.random.Generator) -> np.ndarray:
    """Return noise of single pixels."""
    return generator.random((SIDE, SIDE))


def clouds(generator: np.random.Generator) -> np.ndarray:
    """Return smooth noise."""
    return spread(gaussian_filter(generator.random((SIDE, SIDE)), generator.uniform(5, 8), mode="wrap"))


def spots(generator: np.random.Generator) -> np.ndarray:
    """Return noise cut into irregular islands."""
    smooth = gaussian_filter(generator.random((SIDE, SIDE)), generator.uniform(2, 3), mode="wrap")
    islands: np.ndarray = (smooth > np.quantile(smooth, generator.uniform(0.55, 0.75))).astype(float)
    return islands


def stripes(generator: np.random.Generator) -> np.ndarray:
    """Return stripes in any direction."""
    angle = generator.uniform(0, np.pi)
    along = np.cos(angle) * columns() + np.sin(angle) * columns().T
    wave: np.ndarray = 0.5 + 0.5 * np.sin(2 * np.pi * (along / generator.uniform(7, 13) + generator.random()))
    return wave


def weave(generator: np.random.Generator) -> np.ndarray:
    """Return horizontal and vertical threads that pass over and under each other."""
    thread = generator.uniform(6, 10)
    offset = generator.uniform(0, thread, 2)
    across = (columns() + offset[0]) / thread
    down = (columns().T + offset[1]) / thread
    over = (np.floor(across) + np.floor(down)) % 2 == 0
    threads: np.ndarray = np.where(over, np.abs(np.sin(np.pi * across)), 0.45 * np.abs(np.sin(np.pi * down)))
    return threads


def dots(generator: np.random.Generator) -> np.ndarray:
    """Return round dots on a turned grid."""
    angle = generator.uniform(0, np.pi / 2)
    step = generator.uniform(9, 14)
    across = (np.cos(angle) * columns() - np.sin(angle) * columns().T) / step + generator.random()
    down = (np.sin(angle) * columns() + np.cos(angle) * columns().T) / step + generator.random()
    distance = np.hypot(across % 1 - 0.5, down % 1 - 0.5)
    discs: np.ndarray = (distance < 0.3).astype(float)
    return discs


def bricks(generator: np.random.Generator) -> np.ndarray:
    """Return rows of bricks with joints."""
    height = generator.uniform(8, 12)
    width = generator.uniform(1.7, 2.3) * height
    down = (columns().T + generator.uniform(0, height)) / height
    across = columns() / width + 0.5 * (np.floor(down) % 2) + generator.random()
    joint = (down % 1 < 0.2) | (across % 1 < 0.2 * height / width)
    return np.where(joint, 0.0, 1.0)


def columns() -> np.ndarray:
    """Return the number of the column of each pixel (SIDE, SIDE)."""
    return np.tile(np.arange(SIDE, dtype=np.float64), (SIDE, 1))


def spread(pattern: np.ndarray) -> np.ndarray:
    """Return a pattern stretched to [0, 1]."""
    stretched: np.ndarray = (pattern - pattern.min()) / (pattern.max() - pattern.min())
    return stretched


TEXTURES: dict[str, Texture] = {
    "grain": grain,
    "clouds": clouds,
    "spots": spots,
    "stripes": stripes,
    "weave": weave,
    "dots": dots,
    "bricks": bricks,
}
CLASSES = tuple(TEXTURES)


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one image of 64 x 64 pixels in colour for each label."""
    return draw_each(texture, label, CLASSES, generator)


def texture(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the texture of a class."""
    pattern = TEXTURES[CLASSES[label]](generator)[:, :, None]
    low, high = (np.array(colour, dtype=np.float64) for colour in two_colours(generator, 40))
    image = Image.fromarray((low + pattern * (high - low)).round().astype(np.uint8))
    return with_noise(image, NOISE, generator)
