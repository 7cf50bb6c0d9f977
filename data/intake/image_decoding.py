"""Decoding of one image of any common format to bytes, with a note of every conversion or the reason of a refusal."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, features

from shoal.core.errors import DataError, short_text
from shoal.data.intake.png_text import without_text

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", *(["AVIF"] if features.check("avif") else []))
"""The formats that Pillow may open: some of its other formats start programs."""
MAX_PIXELS = 50_000_000
"""Largest number of pixels of an image, checked before decoding: so many take half a gigabyte."""
MAX_COARSE_LEVEL = 4095
"""Greys of 16 bits up to this value keep at most 16 of 256 levels, which is too few."""
WITH_FRAMES = frozenset({"GIF", "TIFF", "WEBP", "PNG", "AVIF", "MPO"})
_TURNED = range(2, 9)
"""EXIF orientations that ask for a turn or a flip."""
_SIDES_SWAPPED = range(5, 9)
_WHITE_IS_ZERO = 0
_PHOTOMETRIC = 262
_ORIENTATION = 274
_SUBFILE = 254
_DNG_VERSION = 50706
_LEVEL_STEP = {"L;2": 85, "L;4": 17, "1": 255}
"""Distance of a PNG's grey levels as bytes, by Pillow's raw mode."""
_CONVERSIONS = {
    "P": "palette colours converted to RGB",
    "PA": "palette colours converted to RGB",
    "CMYK": "CMYK converted to RGB, without its colour profile",
}
_OPAQUE_RGB = ("RGBA", "RGBa", "RGBX")
"""Modes that are plain RGB if nothing is transparent."""

Changes = tuple[tuple[str, str], ...]
"""Conversions of one image: the kind, the same text for all images, and a detail."""


class Unusable(DataError):
    """An image that is refused.

    Args:
        message: the reason, without the path.
        kind: the same text for all images that are refused for this reason.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Decoded:
    """One image.

    Attributes:
        pixels: uint8 (height, width) where it is grey, else (height, width, 3).
        changes: its conversions.
    """

    pixels: np.ndarray
    changes: Changes = ()


def decode(source: Path | BinaryIO) -> np.ndarray:
    """Return the pixels of one image, see `decode_with_changes`."""
    return decode_with_changes(source).pixels


def decode_with_changes(source: Path | BinaryIO) -> Decoded:
    """Decode one image of a file, or of bytes in memory.

    Orientation tags are applied, a transparent background becomes white, and an animation gives its first frame. 16-bit
    grey is divided by 257, floating-point grey must lie in [0, 1] and is multiplied by 255. Text and colour profiles
    beside the pixels are not used, however large they are.

    Raises:
        Unusable: the reason, without the path.
    """
    try:
        return _decode(source)
    except Unusable:
        raise
    except MemoryError as error:
        raise Unusable("there is not enough memory to decode it: make it smaller", "not enough memory") from error
    except Image.DecompressionBombError as error:
        raise _too_large("more than 170,000,000") from error
    except Exception as error:  # decoders raise nearly anything on broken files
        slim = without_text(source)
        if slim is not None:
            try:
                return _decode(io.BytesIO(slim))
            except Unusable:
                raise
            except Exception:  # its pixels are broken too: the first reason counts
                pass
        raise Unusable(f"unreadable or truncated ({short_text(error)})", "unreadable or truncated") from error


def header_size(path: Path) -> tuple[int, int] | None:
    """Return height and width by the file's header, turned upright; None if it cannot be read.

    Nothing is decoded. `decode` may find another size for a broken file, or one that hides its orientation.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as opened:
                width, height = opened.size
                tagged = opened.format not in ("PNG", "TIFF") or "exif" in opened.info
                turned = tagged and opened.getexif().get(_ORIENTATION) in _SIDES_SWAPPED
    except Exception:  # decoding says what is wrong
        return None
    return (width, height) if turned else (height, width)


def _decode(source: Path | BinaryIO) -> Decoded:
    changes: list[tuple[str, str]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not isinstance(source, Path):
            source.seek(0)
        with Image.open(source, formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise _too_large(f"{opened.height}x{opened.width}")
            _refuse_preview(opened)
            kind = str(opened.format)
            raw_mode = _raw_mode(opened)
            tags = getattr(opened, "tag_v2", {})
            negative = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
            orientation = tags.get(_ORIENTATION)
            _note_depth(opened, raw_mode, source, changes)
            opened.load()
            if kind != "TIFF":
                orientation = opened.getexif().get(ExifTags.Base.Orientation)
            if orientation in _TURNED:
                changes.append(("turned upright, as its EXIF orientation says", f"orientation {orientation}"))
            ImageOps.exif_transpose(opened, in_place=True)
            pixels = _pixels(opened, raw_mode, negative, changes)
        if kind in WITH_FRAMES:
            _note_frames(source, changes)
    return Decoded(pixels, tuple(changes))


def _too_large(pixels: str) -> Unusable:
    return Unusable(
        f"{pixels} pixels, at most {MAX_PIXELS:,} in all are decoded: make it smaller", "more pixels than are decoded"
    )


def _refuse_preview(opened: Image.Image) -> None:
    """Refuse camera raw files, of which Pillow silently reads a small preview."""
    tags = getattr(opened, "tag_v2", {})
    if _DNG_VERSION in tags or int(tags.get(_SUBFILE, 0)) & 1:
        raise Unusable(
            "a camera raw file, of which only a small preview can be read: export it as JPEG, PNG or TIFF",
            "camera raw file: export it as JPEG, PNG or TIFF",
        )


def _raw_mode(opened: Image.Image) -> str:
    """Return Pillow's name for the layout of the pixels, such as "RGB;16B"; empty if it gives none."""
    arguments = _decoder_arguments(opened)
    return str(arguments[0]) if arguments else ""


def _ppm_bits(opened: Image.Image) -> int:
    """Return the bits of the largest value in a PPM file's header."""
    arguments = _decoder_arguments(opened)
    return int(arguments[1]).bit_length() if len(arguments) == 2 else 8


def _decoder_arguments(opened: Image.Image) -> tuple[Any, ...]:
    """Return Pillow's arguments for the decoder of the first tile: the raw mode, then others by format."""
    tiles = getattr(opened, "tile", [])
    if not tiles:
        return ()
    arguments = tiles[0][3]
    return arguments if isinstance(arguments, tuple) else (arguments,)


def _note_depth(opened: Image.Image, raw_mode: str, source: Path | BinaryIO, changes: list[tuple[str, str]]) -> None:
    """Note colours of more than 8 bits, of which Pillow keeps the upper 8."""
    bits = 8
    if opened.mode in ("RGB", "RGBA", "LA", "CMYK", "RGBX"):
        if ";16" in raw_mode:
            bits = 16
        elif opened.format == "PPM":
            bits = _ppm_bits(opened)
        elif opened.format == "AVIF":
            bits = avif_bits(source)
    if bits <= 8:
        return
    if ";16" in raw_mode and opened.mode == "RGB" and "transparency" in opened.info:
        raise Unusable(
            "16-bit colours of which one is transparent: save it with an alpha channel, or without transparency",
            "16-bit colours of which one is transparent",
        )
    changes.append((f"{bits}-bit colours cut to 8 bits", ""))


def avif_bits(source: Path | BinaryIO) -> int:
    """Return the bits of a colour in an AVIF file, from its box av1C."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            head = file.read(1 << 14)
    else:
        place = source.tell()
        source.seek(0)
        head = source.read(1 << 14)
        source.seek(place)
    at = head.find(b"av1C")
    if at < 0 or at + 6 >= len(head):
        return 8
    flags = head[at + 6]
    if not flags & 0x40:
        return 8
    return 12 if flags & 0x20 else 10


def _note_frames(source: Path | BinaryIO, changes: list[tuple[str, str]]) -> None:
    try:
        if not isinstance(source, Path):
            source.seek(0)
        with Image.open(source, formats=FORMATS) as opened:
            frames = int(getattr(opened, "n_frames", 1))
    except Exception:  # a later frame is broken; the first one was read
        return
    if frames > 1:
        changes.append(("the first of several frames was taken", f"{frames} frames"))


def _pixels(image: Image.Image, raw_mode: str, negative: bool, changes: list[tuple[str, str]]) -> np.ndarray:
    if image.mode == "F" or image.mode.startswith("I"):
        return _scaled(image, raw_mode, negative, changes)
    grey = image.mode in ("1", "L", "LA", "La")
    if image.has_transparency_data:
        composed = _on_white(image, grey, raw_mode)
        if composed is not None:
            changes.append(("transparent ground composed to white", ""))
            return composed
    if image.mode in ("L", "RGB"):
        return np.asarray(image)
    if grey:
        return np.asarray(image.convert("L"))
    if image.mode not in _OPAQUE_RGB:
        changes.append((_CONVERSIONS.get(image.mode, f"{image.mode} converted to RGB"), ""))
    return np.asarray(image.convert("RGB"))


def _on_white(image: Image.Image, grey: bool, raw_mode: str) -> np.ndarray | None:
    """Return the image on a white background; None if nothing of it is transparent."""
    clear = image.info.get("transparency")
    if grey and isinstance(clear, int):
        pixels = np.array(image.convert("L"))
        ground = pixels == clear * _LEVEL_STEP.get(raw_mode, 1)
        if not ground.any():
            return None
        pixels[ground] = 255
        return pixels
    layered = image.convert("LA" if grey else "RGBA")
    alpha = layered.getchannel("A")
    if alpha.getextrema()[0] == 255:
        return None
    flat = "L" if grey else "RGB"
    white = Image.new(flat, image.size, "white")
    white.paste(layered.convert(flat), mask=alpha)
    return np.asarray(white)


def _scaled(image: Image.Image, raw_mode: str, negative: bool, changes: list[tuple[str, str]]) -> np.ndarray:
    """Convert greys of more than 8 bits to bytes."""
    values = np.asarray(image)
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            count = int((~np.isfinite(values)).sum())
            raise Unusable(f"{count} pixels are NaN or infinite", "pixels are NaN or infinite")
        top: float = 1.0
        kind = "floating-point greys scaled to 8 bits"
    else:
        bits, top = (12, 4095) if raw_mode == "I;12" else (16, 65535)
        kind = f"{bits}-bit greys scaled to 8 bits"
    low = values.min()
    high = values.max()
    if low < 0 or high > top:
        raise Unusable(f"pixels from {low:g} to {high:g}, expected 0 to {top:g}", "pixel values out of range")
    if top == 65535 and 0 < high <= MAX_COARSE_LEVEL:
        raise Unusable(
            f"16-bit greys of which none is above {high}, so that 8 bits would keep {high // 257 + 1} of 256 levels: "
            "scale its values to 0 to 65535, or to 8 bits",
            "16-bit greys that use few of their levels",
        )
    clear = image.info.get("transparency")
    scaled = np.round(values.astype(np.float64) * (255 / top if top != 65535 else 1 / 257)).astype(np.uint8)
    if negative:
        scaled = 255 - scaled
        changes.append(("a negative (white is zero) turned positive", ""))
    changes.append((kind, f"values from {low:g} to {high:g}"))
    if isinstance(clear, int) and (values == clear).any():
        scaled[values == clear] = 255
        changes.append(("transparent ground composed to white", ""))
    return scaled
