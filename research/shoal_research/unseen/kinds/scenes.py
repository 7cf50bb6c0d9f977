"""Drawn scenes: a house, tree, car, boat or aeroplane before a cluttered background, in any colour and light."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from shoal_research.unseen.samples import SUPERSAMPLING, Samples, draw_each, random_colour, with_noise

SIDE = 64
NOISE = 9.0
CLUTTER = 9
"""At most so many small things lie around."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Canvas:
    """Where a thing is drawn: its box has the width and height 1, and is mapped to the image.

    Attributes:
        pen: of the image.
        left, top: corner of the box in pixels.
        width, height: of the box in pixels.
        mirrored: whether left and right change places.
    """

    pen: ImageDraw.ImageDraw
    left: float
    top: float
    width: float
    height: float
    mirrored: bool

    def at(self, x: float, y: float) -> Point:
        """Return the pixel of a point of the box."""
        if self.mirrored:
            x = 1 - x
        return self.left + x * self.width, self.top + y * self.height

    def polygon(self, points: list[Point], colour: tuple[int, int, int]) -> None:
        """Fill a polygon."""
        self.pen.polygon([self.at(*point) for point in points], fill=colour)

    def box(self, low: Point, high: Point, colour: tuple[int, int, int]) -> None:
        """Fill a rectangle."""
        self.polygon([low, (high[0], low[1]), high, (low[0], high[1])], colour)

    def disc(self, centre: Point, radius: float, colour: tuple[int, int, int]) -> None:
        """Fill a circle; the radius is a share of the box's width."""
        x, y = self.at(*centre)
        own = radius * self.width
        self.pen.ellipse((x - own, y - own, x + own, y + own), fill=colour)


def house(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw walls, a roof, a door and windows."""
    canvas.box((0.1, 0.45), (0.9, 1.0), random_colour(generator))
    canvas.polygon([(0.0, 0.47), (0.5, 0.05), (1.0, 0.47)], random_colour(generator))
    dark = shade(generator, 20, 90)
    canvas.box((0.42, 0.68), (0.58, 1.0), dark)
    for left in (0.17, 0.68):
        canvas.box((left, 0.56), (left + 0.15, 0.72), shade(generator, 180, 255))


def tree(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw a trunk, and a crown of a few discs."""
    canvas.box((0.43, 0.5), (0.57, 1.0), (int(generator.integers(60, 120)), int(generator.integers(35, 70)), 30))
    leaf = (int(generator.integers(20, 190)), int(generator.integers(90, 200)), int(generator.integers(20, 90)))
    for _ in range(7):
        x, y = generator.uniform((0.28, 0.18), (0.72, 0.5))
        canvas.disc((float(x), float(y)), generator.uniform(0.16, 0.26), leaf)


def car(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw a body, a cabin with windows, and two wheels."""
    body = random_colour(generator)
    canvas.box((0.0, 0.55), (1.0, 0.82), body)
    canvas.polygon([(0.18, 0.57), (0.3, 0.3), (0.68, 0.3), (0.82, 0.57)], body)
    canvas.polygon([(0.26, 0.54), (0.34, 0.36), (0.48, 0.36), (0.48, 0.54)], shade(generator, 170, 250))
    canvas.polygon([(0.52, 0.54), (0.52, 0.36), (0.64, 0.36), (0.73, 0.54)], shade(generator, 170, 250))
    for x in (0.23, 0.77):
        canvas.disc((x, 0.83), 0.12, (25, 25, 28))
        canvas.disc((x, 0.83), 0.05, (150, 150, 150))


def boat(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw a hull, a mast and two sails."""
    canvas.polygon([(0.0, 0.74), (1.0, 0.74), (0.82, 0.98), (0.18, 0.98)], random_colour(generator))
    canvas.box((0.48, 0.02), (0.52, 0.75), shade(generator, 40, 110))
    sail = shade(generator, 180, 255)
    canvas.polygon([(0.54, 0.05), (0.54, 0.68), (0.95, 0.68)], sail)
    canvas.polygon([(0.46, 0.15), (0.46, 0.68), (0.12, 0.68)], sail)


def aeroplane(canvas: Canvas, generator: np.random.Generator) -> None:
    """Draw a fuselage from the side, a wing and a tail."""
    body = shade(generator, 150, 255)
    wing = random_colour(generator)
    canvas.polygon([(0.04, 0.5), (0.12, 0.42), (0.9, 0.42), (1.0, 0.48), (0.9, 0.58), (0.12, 0.58)], body)
    canvas.polygon([(0.86, 0.44), (0.98, 0.18), (0.99, 0.46)], wing)
    canvas.polygon([(0.36, 0.5), (0.56, 0.5), (0.8, 0.9), (0.68, 0.9)], wing)
    canvas.polygon([(0.42, 0.42), (0.56, 0.42), (0.72, 0.12), (0.64, 0.12)], wing)


Thing = Callable[[Canvas, np.random.Generator], None]
THINGS: dict[str, Thing] = {"house": house, "tree": tree, "car": car, "boat": boat, "aeroplane": aeroplane}
CLASSES = tuple(THINGS)


def make(label: np.ndarray, generator: np.random.Generator) -> Samples:
    """Return one image of 64 x 64 pixels in colour for each label."""
    return draw_each(scene, label, CLASSES, generator)


def scene(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the thing of a class in a scene."""
    side = SIDE * SUPERSAMPLING
    image = background(side, generator)
    size = side * generator.uniform(0.5, 0.72)
    width = size * generator.uniform(0.85, 1.15)
    left = generator.uniform(0, side - min(width, side))
    top = generator.uniform(0.15 * side, side - size)
    canvas = Canvas(ImageDraw.Draw(image), left, top, width, size, bool(generator.integers(2)))
    THINGS[CLASSES[label]](canvas, generator)
    turned = image.rotate(generator.uniform(-6, 6), Image.Resampling.BICUBIC, fillcolor=image.getpixel((side // 2, 2)))
    small = turned.resize((SIDE, SIDE), Image.Resampling.BOX)
    light = generator.uniform(0.65, 1.1)
    return with_noise(small.point(lambda level: min(255, level * light)), NOISE, generator)


def background(side: int, generator: np.random.Generator) -> Image.Image:
    """Draw sky, ground and clutter, out of focus."""
    image = Image.new("RGB", (side, side), random_colour(generator))
    pen = ImageDraw.Draw(image)
    horizon = side * generator.uniform(0.45, 0.8)
    pen.rectangle((0, horizon, side, side), fill=random_colour(generator))
    for _ in range(int(generator.integers(3, CLUTTER + 1))):
        x, y = generator.uniform(0, side, 2)
        width, height = side * generator.uniform(0.03, 0.2, 2)
        corners = (x, y, x + width, y + height)
        if generator.integers(2):
            pen.ellipse(corners, fill=random_colour(generator))
        else:
            pen.rectangle(corners, fill=random_colour(generator))
    return image.filter(ImageFilter.GaussianBlur(side / 45))


def shade(generator: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    """Return a greyish colour between two levels."""
    level = int(generator.integers(low, high + 1))
    return level, level, int(np.clip(level + generator.integers(-15, 16), 0, 255))
