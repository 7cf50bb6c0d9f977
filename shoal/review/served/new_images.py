"""New images converted to the form of a finished run's data set, with a note of every conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.intake.image_decoding import CONVERTED, Decoded, Unusable, why_not_read
from shoal.data.intake.images import GREY_IN_COLOUR, resized_pixels
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import DataSpec


def fit_image(pixels: np.ndarray, spec: DataSpec, on_odd: str) -> np.ndarray:
    """Return an image in the form of the set's: uint8 (channels, height, width).

    A coloured image becomes grey where the set is grey (ITU-R 601 luma), a grey one gets three equal planes where the
    set is coloured.

    Args:
        pixels: uint8 (height, width) or (height, width, 3).
        spec: of the set.
        on_odd: how to treat an image of another size: skip or resize it.

    Raises:
        Unusable: the image has another size, and `on_odd` is not resize.
    """
    channels, height, width = spec.shape
    size = pixels.shape[:2]
    if size != (height, width) and on_odd != "resize":
        raise Unusable(
            f"odd-sized: {size[0]}x{size[1]}, the set's images are {height}x{width} (height x width): "
            "--on-odd resize, or on_odd: resize of an assignment, fits it",
            f"not {height}x{width} (height x width)",
        )
    mode = "L" if channels == 1 else "RGB"
    pixels = np.asarray(Image.fromarray(pixels).convert(mode))
    if size != (height, width):
        pixels = resized_pixels(pixels, (height, width))
    if pixels.ndim == 2:
        return pixels[None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def one_file(source: Path, name: str, intake: Intake) -> str:
    """Return the name of a single file that is an image.

    Raises:
        DataError: the file is not an image that can be read.
    """
    intake.see("files")
    reason = why_not_read(source)
    if reason is not None:
        raise DataError(f"{source} is not a usable image ({reason}): the model was trained on the images of {name!r}")
    return source.name


def note_changes(file: str, decoded: Decoded, spec: DataSpec, intake: Intake) -> None:
    """Note every conversion of a used image, those of `fit_image` included."""
    if decoded.changes:
        intake.adapt(CONVERTED, file, decoded.changes)
    height, width = decoded.pixels.shape[:2]
    if (height, width) != spec.shape[1:]:
        kind = f"resized to {spec.shape[1]}x{spec.shape[2]} (height x width)"
        intake.adapt(kind, file, f"from {height}x{width}")
    if decoded.pixels.ndim == 3 and spec.shape[0] == 1:
        intake.adapt("made grey, as the set is", file)
    if decoded.pixels.ndim == 2 and spec.shape[0] == 3:
        intake.adapt(GREY_IN_COLOUR, file)
