"""Decoding of one image: the first frame of what Pillow opens, turned by its EXIF orientation, as grey or RGB."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, features

from shoal.core.errors import DataError, short_text

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
