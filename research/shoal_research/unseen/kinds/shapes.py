"""Filled shapes of any place, scale, turn and colour on a coloured ground."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from shoal_research.unseen.samples import SUPERSAMPLING, Samples, draw_each, two_colours, with_noise

CLASSES = ("triangle", "square", "star", "cross", "ring", "crescent")
SIDE = 48
NOISE = 20.0
POLYGONS = {"triangle": 3, "square": 4}


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one image of 48 x 48 pixels in colour for each label."""
    return draw_each(shape, label, CLASSES, generator)


def shape(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the shape of a class."""
    side = SIDE * SUPERSAMPLING
    ground, colour = two_colours(generator, 45)
    image = Image.new("RGB", (side, side), ground)
    radius = side * generator.uniform(0.15, 0.3)
    centre = generator.uniform(radius, side - radius, 2)
    turn = generator.uniform(0, 2 * math.pi)
    draw_shape(ImageDraw.Draw(image), CLASSES[label], centre, radius, turn, (ground, colour))
    return with_noise(image.resize((SIDE, SIDE), Image.Resampling.BOX), NOISE, generator)


def draw_shape(
    pen: ImageDraw.ImageDraw,
    name: str,
    centre: np.ndarray,
    radius: float,
    turn: float,
    colours: tuple[tuple[int, int, int], tuple[int, int, int]],
) -> None:
    """Draw a shape; colours are those of the ground and of the shape."""
    ground, colour = colours
    if name in POLYGONS:
        pen.polygon(corners(centre, np.full(POLYGONS[name], radius), turn), fill=colour)
    elif name == "star":
        pen.polygon(corners(centre, np.tile([radius, 0.4 * radius], 5), turn), fill=colour)
    elif name == "cross":
        pen.polygon(cross_corners(centre, radius, turn), fill=colour)
    else:
        pen.ellipse(circle(centre, radius), fill=colour)
        inner = centre
        share = 0.55
        if name == "crescent":
            inner = centre + 0.45 * radius * np.array([math.cos(turn), math.sin(turn)])
            share = 0.8
        pen.ellipse(circle(inner, share * radius), fill=ground)


def corners(centre: np.ndarray, radii: np.ndarray, turn: float) -> list[tuple[float, float]]:
    """Return points at equal angles around a centre, at these distances."""
    angle = turn + 2 * math.pi * np.arange(len(radii)) / len(radii)
    x = centre[0] + radii * np.cos(angle)
    y = centre[1] + radii * np.sin(angle)
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def cross_corners(centre: np.ndarray, radius: float, turn: float) -> list[tuple[float, float]]:
    """Return the twelve corners of a cross."""
    thin = 0.32 * radius
    arm = np.array([[thin, radius], [thin, thin], [radius, thin]])
    points = []
    for quarter in range(4):
        angle = turn - quarter * math.pi / 2
        turned = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        points += [(float(x), float(y)) for x, y in centre + arm @ turned.T]
    return points


def circle(centre: np.ndarray, radius: float) -> tuple[float, float, float, float]:
    """Return the box around a circle."""
    return (
        float(centre[0] - radius),
        float(centre[1] - radius),
        float(centre[0] + radius),
        float(centre[1] + radius),
    )
