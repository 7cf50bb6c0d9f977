"""The kind of image in a file, by its first bytes, since names may be wrong."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.data.intake.image_decoding import FORMATS

HEAD_BYTES = 64
"""Number of bytes that identify the kind of a file."""
SUFFIXES = frozenset(
    {
        *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp", ".avif"),
        *(".pgm", ".ppm", ".pnm", ".pbm", ".pfm"),
    }
)
"""Suffixes of images: a file with such a name that holds no image is broken."""
RAW_SUFFIXES = frozenset(
    {
        *(".dng", ".nef", ".nrw", ".cr2", ".cr3", ".crw", ".arw", ".sr2", ".srf", ".orf", ".rw2", ".pef", ".srw"),
        *(".raf", ".3fr", ".fff", ".iiq", ".kdc", ".dcr", ".erf", ".mef", ".mos", ".x3f", ".rwl", ".raw"),
    }
)
HEIC = "HEIC photo: export it as JPEG or PNG"
AVIF = "AVIF image, which the installed Pillow cannot read: convert it to JPEG or PNG"
RAW = "camera raw file: export it as JPEG, PNG or TIFF"
NO_IMAGE = "not an image"
OTHER_FORMATS = {
    ".heic": HEIC,
    ".heif": HEIC,
    ".hif": HEIC,
    **dict.fromkeys(RAW_SUFFIXES, RAW),
    **{
        suffix: f"image in a format that is not read ({suffix}): convert it to PNG"
        for suffix in (".svg", ".psd", ".jp2", ".j2k", ".jxl", ".ico", ".tga", ".eps", ".xcf", ".dcm", ".exr", ".hdr")
    },
}
_NETPBM = re.compile(rb"P[1-6f]\s+(#[^\n]*\n\s*)*-?\d+\s+-?\d+")
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
_BEGINNINGS = (
    ("PNG", b"\x89PNG\r\n\x1a\n"),
    ("JPEG", b"\xff\xd8\xff"),
    ("GIF", b"GIF87a"),
    ("GIF", b"GIF89a"),
    ("TIFF", b"II*\x00"),
    ("TIFF", b"MM\x00*"),
    ("TIFF", b"II+\x00"),
    ("TIFF", b"MM\x00+"),
)


def image_format(head: bytes) -> str | None:
    r"""Return Pillow's name of the format by the first bytes of a file, or "HEIC"; None for other files.

    >>> image_format(b"\xff\xd8\xff\xe0"), image_format(b"hello")
    ('JPEG', None)
    """
    for name, beginning in _BEGINNINGS:
        if head.startswith(beginning):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    if head[4:8] == b"ftyp":
        return _brand(head)
    return "PPM" if _NETPBM.match(head) else None


def _brand(head: bytes) -> str | None:
    """Return AVIF or HEIC by the brands in the first box; None for a film."""
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[place : place + 4] for place in (8, *range(16, end - 3, 4))}
    if brands & {b"avif", b"avis"}:
        return "AVIF"
    if brands & {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}:
        return "HEIC"
    return None


def why_not_read(path: Path) -> str | None:
    """Return why a file is not a readable image; None if it is one, or has the name of one.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        kind = image_format(file.read(HEAD_BYTES))
    suffix = path.suffix.lower()
    if kind == "HEIC":
        return HEIC
    if kind == "AVIF" and "AVIF" not in FORMATS:
        return AVIF
    if kind == "TIFF" and suffix in RAW_SUFFIXES:
        return RAW
    if kind is not None or suffix in SUFFIXES:
        return None
    return OTHER_FORMATS.get(suffix, NO_IMAGE)
