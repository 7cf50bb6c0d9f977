"""Letters in the fonts that come with matplotlib, grey, slightly turned and moved."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from shoal_research.unseen.samples import SUPERSAMPLING, with_noise

CLASSES = tuple("ABEGHKMRSW")
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "STIXGeneral",
    "STIXGeneralBol",
    "cmr10",
    "cmss10",
)
SIDE = 32
NOISE = 12.0
MAX_DEGREES = 12.0


def letter(label: int, generator: np.random.Generator) -> Image.Image:
    """Draw a letter in a random font, in 32 x 32 grey pixels."""
    side = SIDE * SUPERSAMPLING
    paper = int(generator.integers(170, 256))
    ink = int(generator.integers(0, 90))
    image = Image.new("L", (side, side), paper)
    face = font(FONTS[generator.integers(len(FONTS))], round(side * generator.uniform(0.62, 0.8)))
    x, y = side / 2 + generator.uniform(-0.06, 0.06, 2) * side
    ImageDraw.Draw(image).text((x, y), CLASSES[label], font=face, fill=ink, anchor="mm")
    degrees = generator.uniform(-MAX_DEGREES, MAX_DEGREES)
    turned = image.rotate(degrees, Image.Resampling.BICUBIC, fillcolor=paper)
    return with_noise(turned.resize((SIDE, SIDE), Image.Resampling.BOX), NOISE, generator)


@cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font of matplotlib's by file name and size in pixels."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)
