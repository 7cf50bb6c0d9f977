"""Removal of text and colour profile from a PNG, which may be larger than Pillow accepts."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

SIGNATURE = b"\x89PNG\r\n\x1a\n"
TEXT = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
ORIENTATION = (b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Keywords of text that may hold the orientation of the image."""
MAX_ORIENTATION_BYTES = 1 << 16


def without_text(source: Path | BinaryIO) -> bytes | None:
    """Return the file without its chunks of text and its colour profile.

    Args:
        source: a file, or bytes in memory.

    Returns:
        None if it is not a PNG, cannot be read, or has no such chunk.
    """
    try:
        whole = _bytes(source)
    except OSError:
        return None
    if not whole.startswith(SIGNATURE):
        return None
    kept = [SIGNATURE]
    place = len(SIGNATURE)
    dropped = False
    while place + 12 <= len(whole):
        length = int.from_bytes(whole[place : place + 4], "big")
        end = place + 12 + length
        kind = whole[place + 4 : place + 8]
        turns = length <= MAX_ORIENTATION_BYTES and whole[place + 8 : end].startswith(ORIENTATION)
        if kind in TEXT and not turns:
            dropped = True
        else:
            kept.append(whole[place:end])
        place = end
    kept.append(whole[place:])
    return b"".join(kept) if dropped else None


def _bytes(source: Path | BinaryIO) -> bytes:
    if isinstance(source, Path):
        return source.read_bytes()
    source.seek(0)
    return source.read()
