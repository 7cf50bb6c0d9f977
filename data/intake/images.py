"""Decoding of many image files to one size and mode, one after another, with a reason for each failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from shoal.data.intake.image_decoding import Changes, Unusable, decode_with_changes, header_size


@dataclass(frozen=True)
class Rejected:
    """An image that was refused or converted, with the reason.

    Attributes:
        path: below the folder.
        reason: in full.
        kind: the same text for all images with this reason; empty if it is the reason.
    """

    path: str
    reason: str
    kind: str = ""


@dataclass(frozen=True)
class Picture:
    """A decoded image.

    Attributes:
        path: below the folder.
        pixels: uint8 (height, width) for grey, else (height, width, 3). Empty if it has another size and is not
            resized.
        size: height and width in the file.
        changes: its conversions.
    """

    path: str
    pixels: np.ndarray = field(repr=False)
    size: tuple[int, int]
    changes: Changes = ()


def read_images(
    paths: list[Path], root: Path, size: tuple[int, int] | None = None, *, resize: bool = False
) -> tuple[list[Picture], list[Rejected]]:
    """Decode every file, one at a time, and collect all failures.

    An image is resized, or its pixels are dropped, before the next one is decoded, so that memory holds a single image
    of full size.

    Args:
        paths: the files.
        root: names in the result are relative to it.
        size: height and width wanted; None: the most common size (`common_size`).
        resize: whether those of another size are brought to it, bilinear with antialiasing.
    """
    wanted = size or announced_size(paths)
    pictures, rejected = _read(paths, root, wanted, resize)
    if size is None and pictures and common_size(pictures) != wanted:
        # The first vote counted files that are broken, or whose headers are wrong.
        return _read(paths, root, common_size(pictures), resize)
    return pictures, rejected


def _read(paths: list[Path], root: Path, wanted: tuple[int, int], resize: bool) -> tuple[list[Picture], list[Rejected]]:
    pictures: list[Picture] = []
    rejected: list[Rejected] = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            decoded = decode_with_changes(path)
        except Unusable as error:
            rejected.append(Rejected(name, str(error), error.kind))
            continue
        height, width = decoded.pixels.shape[:2]
        pixels = decoded.pixels
        if (height, width) != wanted:
            pixels = resized_pixels(pixels, wanted) if resize else np.empty((0, 0), dtype=np.uint8)
        pictures.append(Picture(name, pixels, (height, width), decoded.changes))
    return pictures, rejected


def announced_size(paths: list[Path]) -> tuple[int, int]:
    """Return the most common size in the headers of files; the largest of equally common ones."""
    counts: Counter[tuple[int, int]] = Counter()
    for path in paths:
        size = header_size(path)
        if size is not None:
            counts[size] += 1
    return _most_common(counts) if counts else (1, 1)


def common_size(pictures: list[Picture]) -> tuple[int, int]:
    """Return the most common (height, width); the largest of equally common ones."""
    return _most_common(Counter(picture.size for picture in pictures))


def _most_common(counts: Counter[tuple[int, int]]) -> tuple[int, int]:
    return max(counts, key=lambda size: (counts[size], size))


def resized_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image uint8 (height, width) or (height, width, 3) in another size, bilinear with antialiasing."""
    return np.array(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))


def odd_sized(pictures: list[Picture], size: tuple[int, int]) -> list[Rejected]:
    """Return the images of another size."""
    target = f"{size[0]}x{size[1]}"
    return [
        Rejected(
            p.path,
            f"odd-sized: {p.size[0]}x{p.size[1]} (height x width), expected {target}",
            f"not {target} (height x width)",
        )
        for p in pictures
        if p.size != size
    ]


def resized(pictures: list[Picture], size: tuple[int, int]) -> list[Rejected]:
    """Return the resized images with their original sizes."""
    target = f"{size[0]}x{size[1]}"
    return [
        Rejected(
            p.path,
            f"resized from {p.size[0]}x{p.size[1]} to {target}",
            f"resized to {target} (height x width)",
        )
        for p in pictures
        if p.size != size
    ]


def adapted(pictures: list[Picture], channels: int) -> list[Rejected]:
    """Return every conversion except resizing: those of `decode_with_changes`, and grey among coloured images."""
    found: list[Rejected] = []
    for picture in pictures:
        for kind, detail in picture.changes:
            found.append(Rejected(picture.path, f"{kind} ({detail})" if detail else kind, kind))
        if picture.pixels.ndim == 2 and channels == 3:
            found.append(Rejected(picture.path, "grey: its pixels fill all three colours"))
    return found


def channels_of(pictures: list[Picture]) -> int:
    """Return 1 if all images are grey, else 3."""
    return 1 if all(picture.pixels.ndim == 2 for picture in pictures) else 3


def stack(pictures: list[Picture], size: tuple[int, int], channels: int) -> np.ndarray:
    """Return one array, uint8 (n, channels, height, width), of images of this size.

    A grey image among coloured ones has three equal planes.
    """
    stacked = np.empty((len(pictures), channels, *size), dtype=np.uint8)
    for row, picture in zip(stacked, pictures, strict=True):
        pixels = picture.pixels
        row[:] = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return stacked


def listing(rejected: list[Rejected], max_lines: int = 100) -> str:
    """Return the rejected images, one a line: at most `max_lines`, then the number of the others."""
    lines = [f"  {each.path}: {each.reason}" for each in rejected[:max_lines]]
    if len(rejected) > max_lines:
        lines.append(f"  and {len(rejected) - max_lines} more")
    return "\n".join(lines)
