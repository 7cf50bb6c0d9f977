"""Drawn scenes: a house, tree, car, boat or aeroplane before a cluttered background, in any colour and light."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from shoal_research.unseen.samples import SUPERSAMPLING, Colour, random_colour, with_noise

SIDE = 64
NOISE = 9.0
CLUTTER = 9
"""At most so many small things lie around."""
LEAVES = 7
"""Discs of a tree's crown."""
Paint = Callable[[np.random.Generator], Colour]


def shade(low: int, high: int, generator: np.random.Generator) -> Colour:
    """Return a greyish colour between two levels."""
    level = int(generator.integers(low, high + 1))
    return level, level, int(np.clip(level + generator.integers(-15, 16), 0, 255))


def trunk(generator: np.random.Generator) -> Colour:
    """Return a brown."""
    return int(generator.integers(60, 120)), int(generator.integers(35, 70)), 30


def leaf(generator: np.random.Generator) -> Colour:
    """Return a green, yellow or red."""
    red, green, blue = (int(generator.integers(low, high)) for low, high in ((20, 190), (90, 200), (20, 90)))
    return red, green, blue


bright = partial(shade, 180, 255)
glass = partial(shade, 170, 250)
TYRE: Colour = (25, 25, 28)
RIM: Colour = (150, 150, 150)
THINGS: dict[str, tuple[tuple[Paint | Colour, tuple[str, ...]], ...]] = {
    "house": (
        (random_colour, (".1,.45 .9,1",)),
        (random_colour, ("0,.47 .5,.05 1,.47",)),
        (partial(shade, 20, 90), (".42,.68 .58,1",)),
        (bright, (".17,.56 .32,.72",)),
        (bright, (".68,.56 .83,.72",)),
    ),
    "tree": ((trunk, (".43,.5 .57,1",)),),
    "car": (
        (random_colour, ("0,.55 1,.82", ".18,.57 .3,.3 .68,.3 .82,.57")),
        (glass, (".26,.54 .34,.36 .48,.36 .48,.54",)),
        (glass, (".52,.54 .52,.36 .64,.36 .73,.54",)),
        (TYRE, (".23,.83,.12", ".77,.83,.12")),
        (RIM, (".23,.83,.05", ".77,.83,.05")),
    ),
    "boat": (
        (random_colour, ("0,.74 1,.74 .82,.98 .18,.98",)),
        (partial(shade, 40, 110), (".48,.02 .52,.75",)),
        (bright, (".54,.05 .54,.68 .95,.68", ".46,.15 .46,.68 .12,.68")),
    ),
    "aeroplane": (
        (partial(shade, 150, 255), (".04,.5 .12,.42 .9,.42 1,.48 .9,.58 .12,.58",)),
        (
            random_colour,
            (
                ".86,.44 .98,.18 .99,.46",
                ".36,.5 .56,.5 .8,.9 .68,.9",
                ".42,.42 .56,.42 .72,.12 .64,.12",
            ),
        ),
    ),
}
"""The parts of each thing: their colour, and their outlines in a box of width and height 1.

`x,y,radius` is a disc, two points `x,y x,y` are corners of a rectangle, and more are those of a polygon. A tree's crown
is drawn at random.
"""
CLASSES = tuple(THINGS)


@dataclass(frozen=True)
class Canvas:
    """Where a thing is drawn: its box of width and height 1 in the image.

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

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a point of the box."""
        if self.mirrored:
            x = 1 - x
        return self.left + x * self.width, self.top + y * self.height

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Fill a circle; the radius is a share of the box's width."""
        column, row = self.at(x, y)
        reach = radius * self.width
        self.pen.ellipse((column - reach, row - reach, column + reach, row + reach), fill=colour)

    def fill(self, outline: str, colour: Colour) -> None:
        """Fill an outline as in `THINGS`."""
        first, *others = [tuple(map(float, point.split(","))) for point in outline.split()]
        if len(first) == 3:
            self.disc(*first, colour)
            return
        if len(others) == 1:
            others = [(others[0][0], first[1]), others[0], (first[0], others[0][1])]
        self.pen.polygon([self.at(x, y) for x, y in (first, *others)], fill=colour)


def scene(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw the thing of a class in a scene of 64 x 64 pixels in colour."""
    side = SIDE * SUPERSAMPLING
    image = background(side, generator)
    size = side * generator.uniform(0.5, 0.72)
    width = size * generator.uniform(0.85, 1.15)
    left = generator.uniform(0, side - min(width, side))
    top = generator.uniform(0.15 * side, side - size)
    canvas = Canvas(ImageDraw.Draw(image), left, top, width, size, bool(generator.integers(2)))
    draw_thing(canvas, CLASSES[label], generator)
    turned = image.rotate(generator.uniform(-6, 6), Image.Resampling.BICUBIC, fillcolor=image.getpixel((side // 2, 2)))
    small = turned.resize((SIDE, SIDE), Image.Resampling.BOX)
    light = generator.uniform(0.65, 1.1)
    return with_noise(small.point(lambda level: min(255, level * light)), NOISE, generator)


def draw_thing(canvas: Canvas, name: str, generator: np.random.Generator) -> None:
    """Draw the parts of a thing, and the crown of a tree."""
    for paint, outlines in THINGS[name]:
        colour = paint
        if callable(colour):
            colour = colour(generator)
        for outline in outlines:
            canvas.fill(outline, colour)
    if name == "tree":
        colour = leaf(generator)
        for _ in range(LEAVES):
            x, y = generator.uniform((0.28, 0.18), (0.72, 0.5))
            canvas.disc(x, y, generator.uniform(0.16, 0.26), colour)


def background(side: int, generator: np.random.Generator) -> Image.Image:
    """Draw sky, ground and clutter, out of focus."""
    image = Image.new("RGB", (side, side), random_colour(generator))
    pen = ImageDraw.Draw(image)
    horizon = side * generator.uniform(0.45, 0.8)
    pen.rectangle((0, horizon, side, side), fill=random_colour(generator))
    for _ in range(int(generator.integers(3, CLUTTER + 1))):
        x, y = generator.uniform(0, side, 2)
        width, height = side * generator.uniform(0.03, 0.2, 2)
        draw = pen.rectangle
        if generator.integers(2):
            draw = pen.ellipse
        draw((x, y, x + width, y + height), fill=random_colour(generator))
    return image.filter(ImageFilter.GaussianBlur(side / 45))
