"""Decoding of many image files to one size and mode, one after another, with a reason for each failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from shoal.data.intake.image_decoding import Unusable, decode_with_changes, header_size
from shoal.data.sets.intake_notes import Intake

MODES = {1: "L", 3: "RGB"}
"""Pillow's modes of images by their channels."""
GREY_IN_COLOUR = "grey: its pixels fill all three colours"


@dataclass(frozen=True)
class RejectedFile:
    """A file that was refused or converted, with the reason.

    Attributes:
        path: below the folder.
        reason: in full.
        kind: the same text for all files with this reason; empty if it is the reason.
        odd: whether it is an image of another size.
    """

    path: str
    reason: str
    kind: str = ""
    odd: bool = False


@dataclass(frozen=True)
class Picture:
    """A decoded image.

    Attributes:
        path: below the folder.
        pixels: uint8 (height, width) for grey, else (height, width, 3).
        changes: how it was converted; empty where it was not.
        resized: from which size to which; empty where it was not.
    """

    path: str
    pixels: np.ndarray = field(repr=False)
    changes: str = ""
    resized: str = ""


def usual_size(names: Sequence[str], root: Path) -> tuple[int, int]:
    """Return the most common (height, width) by the headers of files, the largest of equally common ones."""
    counts = Counter(size for name in names if (size := header_size(root / name)))
    return max(counts, key=lambda size: (counts[size], size), default=(1, 1))


def read_images(
    names: Sequence[str], root: Path, wanted: tuple[int, int], *, resize: bool = False
) -> tuple[list[Picture], list[RejectedFile]]:
    """Decode every file, one at a time, and collect all failures.

    An image is resized, or rejected, before the next one is decoded, so that memory holds a single image of full size.

    Args:
        names: the files, below `root`.
        root: their folder.
        wanted: height and width.
        resize: whether those of another size are brought to it, bilinear with antialiasing.
    """
    pictures = []
    rejected = []
    expected = f"{wanted[0]}x{wanted[1]}"
    for name in names:
        try:
            pixels, changes = decode_with_changes(root / name)
        except Unusable as error:
            rejected.append(RejectedFile(name, str(error), error.kind))
            continue
        height, width = pixels.shape[:2]
        if (height, width) == wanted:
            pictures.append(Picture(name, pixels, changes))
        elif resize:
            change = f"resized from {height}x{width} to {expected}"
            pictures.append(Picture(name, resized_pixels(pixels, wanted), changes, change))
        else:
            reason = f"odd-sized: {height}x{width} (height x width), expected {expected}"
            rejected.append(RejectedFile(name, reason, f"not {expected} (height x width)", odd=True))
    return pictures, rejected


def resized_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image uint8 (height, width) or (height, width, 3) in another size, bilinear with antialiasing."""
    return np.array(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def in_form(pixels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return an image as `decode` gives it in the mode and the size of a set, uint8 (channels, height, width)."""
    channels, height, width = shape
    image = np.asarray(Image.fromarray(pixels).convert(MODES[channels]))
    if image.shape[:2] != (height, width):
        image = resized_pixels(image, (height, width))
    return np.ascontiguousarray(np.atleast_3d(image).transpose(2, 0, 1))


def channels_of(pictures: list[Picture]) -> int:
    """Return 1 if all images are grey, else 3."""
    return 1 if all(picture.pixels.ndim == 2 for picture in pictures) else 3


def listing(rejected: Sequence[RejectedFile], max_lines: int = 100) -> str:
    """Return the rejected files, one a line: at most `max_lines`, then the number of the others."""
    lines = [f"  {each.path}: {each.reason}" for each in rejected[:max_lines]]
    if len(rejected) > max_lines:
        lines.append(f"  and {len(rejected) - max_lines} more")
    return "\n".join(lines)


def note_left_out(rejected: Sequence[RejectedFile], intake: Intake) -> None:
    """Note what was skipped."""
    for each in rejected:
        kind = each.kind or each.reason
        intake.leave_out(kind, each.path, each.reason if each.reason != kind else "")
