"""Filled shapes of any place, scale, turn and colour on a coloured ground."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from shoal_research.unseen.samples import SUPERSAMPLING, two_colours, with_noise

CLASSES = ("triangle", "square", "star", "cross", "ring", "crescent")
SIDE = 48
NOISE = 20.0
RADII = {"triangle": [1.0] * 3, "square": [1.0] * 4, "star": [1.0, 0.4] * 5}
"""The distances of the corners, at equal angles around the centre."""
ARM = np.array([[0.32, 1.0], [0.32, 0.32], [1.0, 0.32]])
"""Three corners of a cross, which is this in four turns."""
HOLES = {"ring": (0.55, 0.0), "crescent": (0.8, 0.45)}
"""The radius of the hole in a disc, and how far it is moved."""


def shape(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the shape of a class in 48 x 48 pixels in colour."""
    side = SIDE * SUPERSAMPLING
    ground, colour = two_colours(generator, 45)
    image = Image.new("RGB", (side, side), ground)
    radius = side * generator.uniform(0.15, 0.3)
    centre = generator.uniform(radius, side - radius, 2)
    turn = generator.uniform(0, 2 * np.pi)
    name = CLASSES[label]
    pen = ImageDraw.Draw(image)
    if name in HOLES:
        inner, moved = HOLES[name]
        pen.ellipse(circle(centre, radius), fill=colour)
        pen.ellipse(circle(centre + moved * radius * direction(turn), inner * radius), fill=ground)
    else:
        pen.polygon(corners(name, centre, radius, turn).ravel().tolist(), fill=colour)
    return with_noise(image.resize((SIDE, SIDE), Image.Resampling.BOX), NOISE, generator)


def corners(name: str, centre: np.ndarray, radius: float, turn: float) -> np.ndarray:
    """Return the corners of a shape, (n, 2)."""
    if name in RADII:
        radii = radius * np.array(RADII[name])
        angle = turn + 2 * np.pi * np.arange(len(radii)) / len(radii)
        points: np.ndarray = centre + radii[:, None] * direction(angle)
        return points
    arms = []
    for quarter in range(4):
        cos, sin = direction(turn - quarter * np.pi / 2)
        arms.append(centre + radius * ARM @ np.array([[cos, sin], [-sin, cos]]))
    return np.concatenate(arms)


def direction(angle: float | np.ndarray) -> np.ndarray:
    """Return the vector of length 1 at an angle, (..., 2)."""
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def circle(centre: np.ndarray, radius: float) -> list[float]:
    """Return the box around a circle."""
    return [*(centre - radius), *(centre + radius)]
