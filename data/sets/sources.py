"""Raw files: found in a mirror folder or downloaded once, and verified by their checksum before use.

A mirror is laid out as torchvision lays out its root folder:

    MNIST/raw/*.gz  FashionMNIST/raw/*.gz
    cifar-10-batches-py/  or  cifar-10-batches-bin/*.bin[.xz|.gz]
    cifar-100-python/     or  cifar-100-binary/*.bin[.xz|.gz]
    ag_news_csv/{train.csv[.gz] or train_subset.csv[.gz], test.csv[.gz]}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from shoal.core.errors import DataError
from shoal.data.sets.readers import unpack
from shoal.data.sets.wording import first_of

MIRROR_VARIABLE = "SHOAL_DATA_MIRROR"
_PACKINGS = ("", ".gz", ".xz")
_ALGORITHMS = {32: "md5", 64: "sha256"}


@dataclass(frozen=True)
class RawFile:
    """One file of a data set.

    `path` is relative to the mirror. `digest` (md5 or sha256, hexadecimal) is that of a file of exactly this name; a
    file stored packed (`path` with .gz or .xz added) is unpacked first. Empty: no checksum was ever published.
    """

    path: str
    digest: str


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a data set is distributed: required and optional files."""

    name: str
    files: tuple[RawFile, ...]
    optional: tuple[RawFile, ...] = ()


@dataclass(frozen=True)
class Raw:
    """The found files of one data set."""

    root: Path
    layout: Layout
    digests: Mapping[str, str]
    """The expected digest of each file, by its relative path."""

    def read(self, path: str) -> bytes:
        """Return the verified content of one file, unpacked unless its own name ends in .gz.

        Raises:
            DataError: the file is missing or broken, or has another checksum.
        """
        found = locate(self.root, path)
        if found is None:
            raise DataError(f"{self.root / path} is missing")
        try:
            content = found.read_bytes()
        except OSError as error:
            raise DataError(f"{found} cannot be read ({error.strerror or error})") from error
        if found.name != Path(path).name:
            content = unpack(content, str(found))
        verify(content, self.digests.get(path, ""), str(found))
        return content

    def read_optional(self, path: str) -> bytes | None:
        """Read a file as `read` does; return None where it is missing or has no published checksum."""
        return None if locate(self.root, path) is None or not self.digests.get(path) else self.read(path)


def locate(root: Path, path: str) -> Path | None:
    """Return the file `path` below `root`, also if it is packed; None where there is none."""
    for packing in _PACKINGS:
        candidate = root / (path + packing)
        if candidate.is_file():
            return candidate
    return None


def verify(content: bytes | bytearray, expected: str, name: str) -> None:
    """Refuse bytes with another checksum than the expected one.

    Args:
        content: the file's bytes.
        expected: md5 (32 digits) or sha256 (64 digits), hexadecimal.
        name: the file, for the error.

    Raises:
        DataError: names the file, the digest found and the one expected.
    """
    if not expected:
        raise DataError(f"no checksum is published for {name}: give its sha256 through `checksums`")
    algorithm = _ALGORITHMS.get(len(expected))
    if algorithm is None:
        raise DataError(f"the checksum given for {name} has {len(expected)} digits, expected 32 (md5) or 64 (sha256)")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected.lower():
        raise DataError(
            f"{name} is not the published file or is truncated: {algorithm} {found}, expected {expected} "
            f"({len(content):,} bytes read): get the file again"
        )


def find(
    name: str,
    layouts: tuple[Layout, ...],
    download: Callable[[Path], None],
    *,
    mirror: Path | None,
    raw: Path,
    checksums: Mapping[str, str] | None = None,
) -> Raw:
    """Find the raw files of a data set in the mirror or an earlier download, or download them.

    Args:
        name: the data set, for errors.
        layouts: its distributed forms, best first.
        download: downloads the first layout below a folder.
        mirror: a folder with the layout of the module's docstring, or None.
        raw: the folder of downloads, with the same layout.
        checksums: digests by relative path, instead of the published ones.

    Raises:
        DataError: `checksums` has an unknown path, or no mirror has all files and the download failed.
    """
    digests = {file.path: file.digest for layout in layouts for file in (*layout.files, *layout.optional)}
    unknown = sorted(set(checksums or {}) - set(digests))
    if unknown:
        raise DataError(
            f"checksums names {unknown[0]!r}, which is not a file of {name}; its files: {', '.join(digests)}"
        )
    digests |= dict(checksums or {})
    roots = [root for root in (mirror, raw) if root is not None]
    for root in roots:
        for layout in layouts:
            if all(locate(root, file.path) for file in layout.files):
                return Raw(root, layout, digests)
    tried = [f"the {'mirror' if root == mirror else 'store'} {root} ({_missing(root, layouts)})" for root in roots]
    try:
        raw.mkdir(parents=True, exist_ok=True)
        download(raw)
    except (OSError, RuntimeError, HTTPException, DataError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"the raw files of {name!r} were not found: tried {', '.join(tried)}, and a download, which failed "
            f"({reason}). Set {MIRROR_VARIABLE} to a folder that holds "
            f"{' or '.join(str(Path(layout.files[0].path).parent) for layout in layouts)}"
        ) from error
    for layout in layouts:
        if all(locate(raw, file.path) for file in layout.files):
            return Raw(raw, layout, digests)
    raise DataError(f"the download of {name!r} left {raw} incomplete: {_missing(raw, layouts)}")


def _missing(root: Path, layouts: tuple[Layout, ...]) -> str:
    """Return the files that `root` lacks, of the layout that is nearest to complete."""
    missing = [[file.path for file in layout.files if locate(root, file.path) is None] for layout in layouts]
    return f"without {first_of(min(missing, key=len), 1)}"
