"""Decoding of many image files to one size and mode, one after another, with a reason for each failure.

Decoding of one image: the first frame of what Pillow opens, turned by its EXIF orientation, as grey or RGB.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, features

from shoal.core.errors import DataError, short_text
from shoal.data.sets.intake_notes import Intake

MODES = {1: "L", 3: "RGB"}
"""Pillow's modes of images by their channels."""
GREY_IN_COLOUR = "grey: its pixels fill all three colours"


@dataclass(frozen=True)
class Rejected:
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
        pixels: uint8 (height, width) for grey, else (height, width, 3). Empty if it has another size and is not
            resized.
        size: height and width in the file.
        changes: how it was converted; empty where it was not.
    """

    path: str
    pixels: np.ndarray = field(repr=False)
    size: tuple[int, int]
    changes: str = ""


def usual_size(names: Sequence[str], root: Path) -> tuple[int, int]:
    """Return the most common (height, width) by the headers of files, the largest of equally common ones."""
    counts = Counter(size for name in names if (size := header_size(root / name)))
    return max(counts, key=lambda size: (counts[size], size), default=(1, 1))


def read_images(
    names: Sequence[str], root: Path, wanted: tuple[int, int], *, resize: bool = False
) -> tuple[list[Picture], list[Rejected]]:
    """Decode every file, one at a time, and collect all failures.

    An image is resized, or its pixels are dropped, before the next one is decoded, so that memory holds a single image
    of full size.

    Args:
        names: the files, below `root`.
        root: their folder.
        wanted: height and width.
        resize: whether those of another size are brought to it, bilinear with antialiasing.
    """
    pictures = []
    rejected = []
    for name in names:
        try:
            pixels, changes = decode_with_changes(root / name)
        except Unusable as error:
            rejected.append(Rejected(name, str(error), error.kind))
            continue
        height, width = pixels.shape[:2]
        if (height, width) != wanted:
            pixels = resized_pixels(pixels, wanted) if resize else np.empty((0, 0), dtype=np.uint8)
        pictures.append(Picture(name, pixels, (height, width), changes))
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


def planes(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Return an image as uint8 (channels, height, width); a grey one among coloured ones has three equal planes."""
    if pixels.ndim == 3:
        return pixels.transpose(2, 0, 1)
    return np.broadcast_to(pixels, (channels, *pixels.shape))


def listing(rejected: Sequence[Rejected], max_lines: int = 100) -> str:
    """Return the rejected files, one a line: at most `max_lines`, then the number of the others."""
    lines = [f"  {each.path}: {each.reason}" for each in rejected[:max_lines]]
    if len(rejected) > max_lines:
        lines.append(f"  and {len(rejected) - max_lines} more")
    return "\n".join(lines)


def note_left_out(rejected: Sequence[Rejected], intake: Intake) -> None:
    """Note what was skipped."""
    for each in rejected:
        kind = each.kind or each.reason
        intake.leave_out(kind, each.path, each.reason if each.reason != kind else "")


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", *(["AVIF"] if features.check("avif") else []))
"""The formats that Pillow may open: some of its other formats start programs."""
SUFFIXES = frozenset(suffix for suffix, kind in Image.registered_extensions().items() if kind in FORMATS)
"""Suffixes of images: a file with such a name that holds no image is broken."""
NO_IMAGE = "no image that Pillow reads"
OTHER_TIFF = "TIFF by another name, such as a camera raw file: export it as JPEG or PNG"
CONVERTED = "image turned by its EXIF orientation, converted to RGB, or its first frame"
MAX_PIXELS = 50_000_000
"""Largest number of pixels of an image, checked before decoding: so many take half a gigabyte."""
LYING = (5, 6, 7, 8)
"""EXIF orientations that swap height and width."""
GREY = ("1", "L", "LA", "La")
"""Pillow's modes of images that stay grey."""
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
"""Programs that draw images write megabytes of text and profiles beside the pixels."""


class Unusable(DataError):
    """An image that is refused.

    Args:
        message: the reason, without the path.
        kind: the same text for all images that are refused for this reason.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def decode(source: Path | BinaryIO) -> np.ndarray:
    """Return the pixels of one image, see `decode_with_changes`."""
    return decode_with_changes(source)[0]


def decode_with_changes(source: Path | BinaryIO) -> tuple[np.ndarray, str]:
    """Decode one image of a file, or of bytes in memory; what is transparent becomes white.

    Returns:
        Its pixels, uint8 (height, width) where it is grey, else (height, width, 3); and how it was converted, such as
        "turned upright, converted from CMYK", empty where it was not.

    Raises:
        Unusable: the reason, without the path.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(source)
    except Unusable:
        raise
    except Exception as error:  # decoders raise nearly anything on broken files
        raise Unusable(f"unreadable or truncated ({short_text(error)})", "unreadable or truncated") from error


def why_not_read(path: Path) -> str | None:
    """Return why a file is no image; None if it is one, or has the name of one."""
    suffix = path.suffix.lower()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as opened:
                kind = opened.format
    except Exception:  # of an image, decoding says what is wrong
        return None if suffix in SUFFIXES else NO_IMAGE
    if kind == "TIFF" and suffix not in (".tif", ".tiff"):  # Pillow would read a small preview
        return OTHER_TIFF
    return None


def header_size(path: Path) -> tuple[int, int] | None:
    """Return height and width of a turned image by the file's header; None if it is not decoded."""
    try:
        with Image.open(path, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                return None
            lies = opened.getexif().get(ExifTags.Base.Orientation, 1) in LYING
            return (opened.width, opened.height) if lies else (opened.height, opened.width)
    except Exception:  # decoding says what is wrong
        return None


def _decode(source: Path | BinaryIO) -> tuple[np.ndarray, str]:
    changes = []
    with Image.open(source, formats=FORMATS) as opened:
        if opened.width * opened.height > MAX_PIXELS:
            raise Unusable(
                f"{opened.height}x{opened.width} pixels, at most {MAX_PIXELS:,} in all are decoded: make it smaller",
                "more pixels than are decoded",
            )
        if opened.mode.startswith(("I", "F")):
            reason = "greys of more than 8 bits: scale them to 8 bits"
            raise Unusable(reason, reason)
        if opened.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            changes.append("turned upright")
        if opened.mode not in ("L", "RGB"):
            changes.append(f"converted from {opened.mode}")
        if (frames := getattr(opened, "n_frames", 1)) > 1:
            changes.append(f"the first of {frames} frames")
        opened.load()
        ImageOps.exif_transpose(opened, in_place=True)
        return np.asarray(_on_white(opened)), ", ".join(changes)


def _on_white(image: Image.Image) -> Image.Image:
    """Return an image in mode L or RGB; what is transparent becomes white."""
    grey = image.mode in GREY
    flat = image if image.mode in ("L", "RGB") else image.convert("L" if grey else "RGB")
    if not image.has_transparency_data:
        return flat
    white = Image.new(flat.mode, flat.size, "white")
    white.paste(flat, mask=image.convert("LA" if grey else "RGBA").getchannel("A"))
    return white
