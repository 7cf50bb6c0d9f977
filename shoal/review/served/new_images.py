"""New images converted to the form of a finished run's data set, with a note of every conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from shoal.core.errors import DataError
from shoal.data.intake.folder_files import find_images
from shoal.data.intake.image_decoding import CONVERTED, Unusable, decode_with_changes, why_not_read
from shoal.data.intake.images import GREY_IN_COLOUR, resized_pixels
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import DataSpec


def read_image(root: Path, file: str, spec: DataSpec, on_odd: str, intake: Intake) -> np.ndarray:
    """Return an image in the form of the set's, uint8 (channels, height, width), and note every conversion.

    A coloured image becomes grey where the set is grey (ITU-R 601 luma), a grey one gets three equal planes where the
    set is coloured.

    Args:
        root: the folder of the files.
        file: the path of the image below it.
        spec: of the set.
        on_odd: how to treat an image of another size: skip or resize it.
        intake: takes the notes.

    Raises:
        Unusable: the image cannot be read, or has another size and `on_odd` is not resize.
    """
    decoded = decode_with_changes(root / file)
    channels, height, width = spec.shape
    pixels = decoded.pixels
    expected = f"{height}x{width} (height x width)"
    size = f"{pixels.shape[0]}x{pixels.shape[1]}"
    odd = pixels.shape[:2] != (height, width)
    if odd and on_odd != "resize":
        raise Unusable(
            f"odd-sized: {size}, the set's images are {expected}: --on-odd resize, or on_odd: resize of an "
            "assignment, fits it",
            f"not {expected}",
        )
    if decoded.changes:
        intake.adapt(CONVERTED, file, decoded.changes)
    if odd:
        intake.adapt(f"resized to {expected}", file, f"from {size}")
    if pixels.ndim == 3 and channels == 1:
        intake.adapt("made grey, as the set is", file)
    if pixels.ndim == 2 and channels == 3:
        intake.adapt(GREY_IN_COLOUR, file)
    pixels = np.asarray(Image.fromarray(pixels).convert("L" if channels == 1 else "RGB"))
    if odd:
        pixels = resized_pixels(pixels, (height, width))
    return np.ascontiguousarray(np.atleast_3d(pixels).transpose(2, 0, 1))


def images_in(source: Path, data: str, intake: Intake) -> list[str]:
    """Return the paths of the images in a folder, or the name of a single file.

    Args:
        source: the folder or the file.
        data: the name of the set that the model was trained on.
        intake: takes the notes.

    Raises:
        DataError: the file is not an image that can be read.
    """
    if not source.is_file():
        return find_images(source, intake)
    intake.see("files")
    reason = why_not_read(source)
    if reason is not None:
        raise DataError(f"{source} is not a usable image ({reason}): the model was trained on the images of {data!r}")
    return [source.name]
