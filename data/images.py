"""Reading images of any common format into bytes of one size and mode, with a reason for each that fails."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from core.errors import DataError, brief

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pnm"})


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What Pillow may take a file for: of its other formats some start programs."""
MOST_PIXELS = 50_000_000
"""Of one image, at most, looked at before anything is decoded: half a gigabyte is at work on so many."""


@dataclass(frozen=True)
class Rejected:
    """An image that was not taken, or not taken as it is, and why or how."""

    path: str
    reason: str


@dataclass(frozen=True)
class Picture:
    """A decoded image: uint8 (height, width) where it is grey, else (height, width, 3)."""

    path: str
    pixels: np.ndarray
    frames: int = 1
    """Of an animation only the first is taken."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[0]), int(self.pixels.shape[1])


def image_files(folder: Path) -> list[Path]:
    """The image files at any depth below a folder, sorted; hidden ones are passed over."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def own_files(paths: list[Path], folder: Path) -> tuple[list[Path], list[Rejected]]:
    """The files that lie in a folder; and those that links reach outside it, or whose names are no text."""
    root = folder.resolve()
    kept: list[Path] = []
    rejected: list[Rejected] = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        shown = name.encode("utf-8", "backslashreplace").decode()
        if shown != name:
            rejected.append(Rejected(shown, "its name is not text in UTF-8"))
        elif not path.resolve().is_relative_to(root):
            rejected.append(Rejected(name, "a link to a place outside the folder: copy what is meant to belong to it"))
        else:
            kept.append(path)
    return kept, rejected


def decode(path: Path | BinaryIO) -> np.ndarray:
    """One image, of a file or of bytes in memory, as uint8: (height, width) where it is grey, else (height, width, 3).

    Orientation tags are applied, an alpha channel is dropped, of an animation the first frame is taken. 16-bit grey is
    divided by 257, floating-point grey must lie in [0, 1] and is multiplied by 255.

    Raises:
        DataError: the reason, without the path.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise DataError(
                        f"{opened.height}x{opened.width} pixels, at most {MOST_PIXELS:,} in all are decoded: make it "
                        "smaller"
                    )
                opened.load()
                ImageOps.exif_transpose(opened, in_place=True)
                image: Image.Image = opened
                if image.mode in ("1", "L", "LA", "La"):
                    return np.array(image.convert("L"))
                if image.mode == "F" or image.mode.startswith("I"):
                    return _to_bytes(np.asarray(image))
                return np.array(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # decoders raise nearly anything on broken files
        raise DataError(f"unreadable or truncated ({brief(error)})") from error


def _to_bytes(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise DataError(f"{int((~np.isfinite(values)).sum())} pixels are NaN or infinite")
        low, high, top = 0.0, 1.0, 255.0
    else:
        low, high, top = 0, 65535, 1 / 257
    if values.min() < low or values.max() > high:
        raise DataError(f"pixels from {values.min():g} to {values.max():g}, expected {low:g} to {high:g}")
    return np.round(values.astype(np.float64) * top).astype(np.uint8)


def _frames(path: Path) -> int:
    try:
        with Image.open(path, formats=FORMATS) as opened:
            return int(getattr(opened, "n_frames", 1))
    except Exception:  # a broken frame after the first, which was read
        return 1


def read_images(paths: list[Path], root: Path) -> tuple[list[Picture], list[Rejected]]:
    """Decode every file, collecting all that fail; paths in the result are relative to `root`."""
    pictures: list[Picture] = []
    rejected: list[Rejected] = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            pictures.append(Picture(name, decode(path), _frames(path)))
        except DataError as error:
            rejected.append(Rejected(name, str(error)))
    return pictures, rejected


def common_size(pictures: list[Picture]) -> tuple[int, int]:
    """The most common (height, width); of equally common ones the largest."""
    counts = Counter(picture.size for picture in pictures)
    return max(counts, key=lambda size: (counts[size], size))


def odd_sized(pictures: list[Picture], size: tuple[int, int]) -> list[Rejected]:
    """The images whose size is another one."""
    return [
        Rejected(p.path, f"odd-sized: {p.size[0]}x{p.size[1]} (height x width), expected {size[0]}x{size[1]}")
        for p in pictures
        if p.size != size
    ]


def resized(pictures: list[Picture], size: tuple[int, int]) -> list[Rejected]:
    """The images that `stack` resizes, and from which size."""
    return [
        Rejected(p.path, f"resized from {p.size[0]}x{p.size[1]} to {size[0]}x{size[1]}")
        for p in pictures
        if p.size != size
    ]


def adapted(pictures: list[Picture], channels: int) -> list[Rejected]:
    """The images that were not taken quite as they are: animations, and grey ones among coloured ones."""
    frames = [Rejected(p.path, f"the first of {p.frames} frames was taken") for p in pictures if p.frames > 1]
    grey = [Rejected(p.path, "grey: its pixels fill all three colours") for p in pictures if p.pixels.ndim == 2]
    return [*frames, *(grey if channels == 3 else [])]


def channels_of(pictures: list[Picture]) -> int:
    """1 if all images are grey, else 3."""
    return 1 if all(picture.pixels.ndim == 2 for picture in pictures) else 3


def stack(pictures: list[Picture], size: tuple[int, int], channels: int) -> np.ndarray:
    """One array, uint8 (n, channels, height, width).

    Images of another size are resized to `size` (height, width), bilinear with antialiasing; a grey image among
    coloured ones has three equal planes.
    """
    stacked = np.empty((len(pictures), channels, *size), dtype=np.uint8)
    for row, picture in zip(stacked, pictures, strict=True):
        pixels = picture.pixels
        if picture.size != size:
            pixels = np.array(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        row[:] = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return stacked


def listing(rejected: list[Rejected], most: int = 100) -> str:
    """The rejected images, one a line; beyond `most` only their number."""
    lines = [f"  {each.path}: {each.reason}" for each in rejected[:most]]
    if len(rejected) > most:
        lines.append(f"  and {len(rejected) - most} more")
    return "\n".join(lines)
