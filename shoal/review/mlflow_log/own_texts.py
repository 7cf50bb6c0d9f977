"""Texts that Shoal writes on MLflow's pages: each is replaced while it is Shoal's, and stays once a user changed it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def digest(text: str) -> str:
    """Return a short hex digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_own(text: str | None, tags: Mapping[str, str], mark: str) -> bool:
    """Return whether a text may be replaced: it is empty, or the one that Shoal wrote.

    Args:
        text: that is there now.
        tags: of what it describes.
        mark: the tag that holds the digest of the text that Shoal wrote.
    """
    return not text or tags.get(mark) == digest(text)
