"""Records that carry a digest of themselves: a change of any value is noticed when they are read back."""

from __future__ import annotations

import hashlib
import json
from typing import Any

SEAL = "seal"
"""The entry of a record that holds the sha256 of all its other entries."""


class BrokenSeal(ValueError):
    """A record is not what was written."""


def digest_of(record: dict[str, Any]) -> str:
    """Return the sha256 of a JSON object, whatever the order of its entries. Keys are text."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its seal.

    >>> broken = {**sealed({"round": 7}), "round": 8}
    >>> unsealed(broken)
    Traceback (most recent call last):
    ...
    shoal.core.seal.BrokenSeal: it has been changed or damaged since it was written
    """
    content = {name: value for name, value in record.items() if name != SEAL}
    return {**content, SEAL: digest_of(content)}


def unsealed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record without its seal; one that never had a seal stays as it is.

    Raises:
        BrokenSeal: the seal is not that of the other entries.
    """
    if not isinstance(record, dict):
        raise BrokenSeal(f"it holds a {type(record).__name__} instead of named entries")
    content = {name: value for name, value in record.items() if name != SEAL}
    if SEAL in record and record[SEAL] != digest_of(content):
        raise BrokenSeal("it has been changed or damaged since it was written")
    return content
