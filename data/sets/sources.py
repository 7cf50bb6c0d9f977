"""Raw files: found in a mirror folder or downloaded once, and verified by their checksum before use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from shoal.core.errors import DataError, first_of, short_text
from shoal.data.sets.files import DIGESTS
from shoal.data.sets.readers import unpack

MIRROR_VARIABLE = "SHOAL_DATA_MIRROR"
DOWNLOAD_ERRORS = (OSError, RuntimeError, HTTPException)
"""What a failed download raises."""
Layout = tuple[str, ...]
"""The files of a data set, by path below the folder of raw files."""


@dataclass(frozen=True)
class Raw:
    """The files of one data set: the folder of raw files, and their paths below it."""

    root: Path
    layout: Layout

    def read(self, path: str) -> bytes:
        """Return the verified content of one file, unpacked unless its own name ends in .gz.

        Raises:
            DataError: the file is missing or broken, or has another checksum.
        """
        place = locate(self.root, path)
        if place is None:
            raise DataError(f"{self.root / path} is missing")
        try:
            content = place.read_bytes()
        except OSError as error:
            raise DataError(f"{place} cannot be read ({short_text(error)})") from error
        if place.name != Path(path).name:
            content = unpack(content, str(place))
        verify(content, DIGESTS[path], str(place))
        return content


def locate(root: Path, path: str) -> Path | None:
    """Return the file `path` below `root`, also if it is packed; None where there is none."""
    places = (root / (path + packing) for packing in ("", ".gz", ".xz"))
    return next((place for place in places if place.is_file()), None)


def verify(content: bytes, expected: str, name: str) -> None:
    """Refuse bytes with another checksum than the expected one.

    Args:
        content: the file's bytes.
        expected: md5 (32 digits) or sha256 (64 digits), hexadecimal.
        name: the file, for the error.

    Raises:
        DataError: names the file, its digest and the one expected.
    """
    algorithm = "md5" if len(expected) == 32 else "sha256"
    digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if digest != expected:
        raise DataError(
            f"{name} is not the published file or is truncated: {algorithm} {digest}, expected {expected} "
            f"({len(content):,} bytes read): get the file again"
        )


def find(
    name: str, layouts: tuple[Layout, ...], download: Callable[[Path], None], mirror: Path | None, raw: Path
) -> Raw:
    """Find the raw files of a data set in the mirror or an earlier download, or download them.

    Args:
        name: the data set, for errors.
        layouts: its distributed forms, best first.
        download: downloads the first layout below a folder.
        mirror: a folder of raw files, or None.
        raw: the folder of downloads.

    Raises:
        DataError: no folder has all files, and the download failed.
    """
    roots = [root for root in (mirror, raw) if root is not None]
    for root in roots:
        for layout in layouts:
            if not missing(root, layout):
                return Raw(root, layout)
    tried = [f"{root} (without {first_of(missing(root, layouts[0]), 1)})" for root in roots]
    try:
        raw.mkdir(parents=True, exist_ok=True)
        download(raw)
    except DOWNLOAD_ERRORS as error:
        raise not_found(name, tried, error, Path(layouts[0][0]).parent) from error
    return Raw(raw, layouts[0])


def not_found(name: str, tried: list[str], error: Exception, folder: Path) -> DataError:
    """Return the error for a set whose raw files are neither here nor could be downloaded.

    Args:
        name: the set.
        tried: the folders that were searched.
        error: of the download.
        folder: what a mirror should hold.
    """
    return DataError(
        f"the raw files of {name!r} were not found: tried {', '.join(tried)}, and a download, which failed "
        f"({short_text(error)}). Set {MIRROR_VARIABLE} to a folder that holds {folder}"
    )


def missing(root: Path, layout: Layout) -> list[str]:
    """Return the files of a layout that a folder lacks."""
    return [path for path in layout if locate(root, path) is None]
