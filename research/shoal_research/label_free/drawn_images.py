"""Small sets of drawn images, each with one kind of difference between its classes.

Each function returns images uint8 (n, side, side) or (n, side, side, 3), and classes int (n,). `ratio` is how many
times larger the largest class is than the smallest.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

FINE = 4
"""Shapes are drawn so many times as large, and then made smaller."""
Set = tuple[np.ndarray, np.ndarray]


def labels_of(seed: int, count: int, classes: int, ratio: float) -> tuple[np.random.Generator, np.ndarray]:
    """Return a set's random numbers, and with the first of them the class of each image, int (count,)."""
    rng = np.random.default_rng(seed)
    shares = ratio ** -np.linspace(0, 1, classes)
    return rng, rng.choice(classes, count, p=shares / shares.sum())


def drawn(y: np.ndarray, draw: Callable[[int], np.ndarray]) -> Set:
    """Return an image of each class of y (n,), and the classes."""
    return np.stack([draw(label) for label in y]), y


def two_colours(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return a random background and foreground."""
    return [tuple(colour) for colour in rng.integers(0, 256, (2, 3)).tolist()]


def reduced(image: Image.Image, side: int) -> Image.Image:
    """Return a drawing in its final size."""
    return image.resize((side, side), Image.Resampling.LANCZOS)


def strokes(seed: int, count: int = 500, classes: int = 5, side: int = 28, ratio: float = 1, shift: float = 2.5) -> Set:
    """Draw glyphs: each class is one random line with corners, which samples shift and bend."""
    rng, y = labels_of(seed, count, classes, ratio)
    glyphs = [rng.uniform(5, side - 5, (int(rng.integers(3, 6)), 2)) for _ in range(classes)]

    def image_of(label: int) -> np.ndarray:
        points = glyphs[label] + rng.normal(0, 0.5 * shift, glyphs[label].shape) + rng.normal(0, 0.6 * shift, (1, 2))
        image = Image.new("L", (FINE * side, FINE * side))
        width = int(rng.integers(6, 14))
        ImageDraw.Draw(image).line((FINE * points).ravel().tolist(), fill=255, width=width, joint="curve")
        return np.array(reduced(image, side))

    return drawn(y, image_of)


def shapes(seed: int, count: int = 500, side: int = 32, ratio: float = 1, *, colour: bool = False) -> Set:
    """Draw a disc, triangle, square or star, of any size, place and turn."""
    rng, y = labels_of(seed, count, 4, ratio)
    mode = ("L", "RGB")[colour]

    def image_of(label: int) -> np.ndarray:
        back, front = two_colours(rng) if colour else [(0, 0, 0), (int(rng.integers(150, 256)),) * 3]
        image = Image.new("RGB", (FINE * side, FINE * side), back)
        radius = rng.uniform(0.18, 0.35) * FINE * side
        centre = rng.uniform(radius, FINE * side - radius, 2)
        number = np.arange((60, 3, 4, 10)[label])
        turn = rng.uniform(0, 2 * np.pi) + 2 * np.pi * number / len(number)
        reach = radius * np.where((label == 3) & (number % 2 == 1), 0.4, 1)
        corners = centre + np.stack([reach * np.cos(turn), reach * np.sin(turn)], 1)
        ImageDraw.Draw(image).polygon(corners.ravel().tolist(), fill=front)
        return np.array(reduced(image, side).convert(mode))

    return drawn(y, image_of)


def colours(seed: int, count: int = 400, side: int = 24, ratio: float = 1) -> Set:
    """Draw noise whose hue is the class."""
    rng, y = labels_of(seed, count, 4, ratio)

    def image_of(label: int) -> np.ndarray:
        hue = (label / 4 + rng.normal(0, 0.035)) % 1
        colour = 255 * np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.45, 0.9), rng.uniform(0.35, 0.95)))
        patches = np.kron(rng.normal(0, 25, (6, 6)), np.ones((side // 6, side // 6)))[..., None]
        return as_image(colour + patches + rng.normal(0, 12, (side, side, 3)))

    return drawn(y, image_of)


def gratings(seed: int, count: int = 400, side: int = 32, classes: int = 4, ratio: float = 1) -> Set:
    """Draw waves of any frequency and phase in noise; their direction is the class."""
    rng, y = labels_of(seed, count, classes, ratio)
    rows, columns = np.mgrid[:side, :side]

    def image_of(label: int) -> np.ndarray:
        angle = label * math.pi / classes + rng.normal(0, 0.12)
        phase = rng.uniform(0.5, 1.1) * (rows * math.cos(angle) + columns * math.sin(angle)) + rng.uniform(0, 6.28)
        wave = 128 + rng.uniform(50, 110) * np.sin(phase)
        return as_image(wave + rng.normal(0, 40, (side, side)))

    return drawn(y, image_of)


def places(seed: int, count: int = 400, side: int = 20, classes: int = 5, ratio: float = 1) -> Set:
    """Draw a bright spot; its place is the class."""
    rng, y = labels_of(seed, count, classes, ratio)
    rows, columns = np.mgrid[:side, :side]
    centres = rng.uniform(3, side - 3, (classes, 2))

    def image_of(label: int) -> np.ndarray:
        row, column = centres[label] + rng.normal(0, 1.2, 2)
        width = rng.uniform(1.5, 3)
        spot = 200 * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * width**2))
        return as_image(spot + rng.normal(20, 20, (side, side)))

    return drawn(y, image_of)


def blobs(seed: int, count: int = 400, side: int = 48, ratio: float = 1) -> Set:
    """Draw few large discs, many small ones, flat ones, or noise, in random colours."""
    rng, y = labels_of(seed, count, 4, ratio)

    def image_of(label: int) -> np.ndarray:
        back, front = two_colours(rng)
        image = Image.new("RGB", (2 * side, 2 * side), back)
        draw = ImageDraw.Draw(image)
        for _ in range((3, 25, 10, 0)[label]):
            x, row = rng.uniform(0, 2 * side, 2)
            height = (rng.uniform(14, 22), rng.uniform(3, 5), 6)[label]
            width = height * (1, 1, 3)[label]
            draw.ellipse([x - width, row - height, x + width, row + height], fill=front)
        pixels = np.array(reduced(image, side)).astype(float)
        if label == 3:
            pixels += rng.normal(0, 30, pixels.shape)
        return as_image(pixels)

    return drawn(y, image_of)


def textures(seed: int, count: int = 400, side: int = 36) -> Set:
    """Draw smooth noise of four widths and stretches."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    rows, columns = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")

    def image_of(label: int) -> np.ndarray:
        high, wide = [(0.05, 0.05), (0.12, 0.12), (0.03, 0.15), (0.25, 0.25)][label]
        pass_band = np.exp(-((rows / high) ** 2) / 2 - (columns / wide) ** 2 / 2)
        field = np.fft.ifft2(np.fft.fft2(rng.normal(0, 1, (side, side))) * pass_band).real
        field = (field - field.mean()) / field.std()
        return as_image(128 + rng.uniform(25, 50) * field + rng.normal(0, 25))

    return drawn(y, image_of)


def patterns(seed: int, count: int = 370, side: int = 40) -> Set:
    """Draw stripes, rings, checks or discs in random colours."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, count)
    return drawn(y, lambda label: _pattern(rng, label, side))


def _pattern(rng: np.random.Generator, label: int, side: int) -> np.ndarray:
    back, front = two_colours(rng)
    image = Image.new("RGB", (side, side), back)
    draw = ImageDraw.Draw(image)
    phase = int(rng.integers(0, 8))
    step = int(rng.integers(6, 10))
    if label == 0:
        for x in range(phase - 2 * side, 3 * side, step):
            draw.line([(x, 0), (x + side, side)], fill=front, width=3)
    elif label == 1:
        centre = rng.integers(12, 28, 2).tolist()
        for radius in range(3 + phase // 2, side, step):
            draw.circle(centre, radius, outline=front, width=3)
    elif label == 2:
        _checks(draw, side, step, phase, front)
    else:
        for centre in rng.integers(0, side - 4, (int(rng.integers(4, 9)), 2)).tolist():
            draw.circle(centre, int(rng.integers(2, 7)), fill=front)
    return np.array(image)


def _checks(draw: ImageDraw.ImageDraw, side: int, step: int, phase: int, front: tuple[int, ...]) -> None:
    for row in range(0, side + 8, step):
        for column in range((row // step + 1) % 2 * step, side + 8, 2 * step):
            left = column - phase
            top = row - phase
            draw.rectangle([left, top, left + step - 1, top + step - 1], fill=front)


def as_image(values: np.ndarray) -> np.ndarray:
    """Return values as bytes, cut to 0 to 255."""
    found: np.ndarray = np.clip(values, 0, 255).astype(np.uint8)
    return found
