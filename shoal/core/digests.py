"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
