"""Merge nested settings: files with overrides, and the common base of a study with the changes of each row."""

from __future__ import annotations

import copy
from typing import Any

SHARED_BY_SCHEMES = ("clients", "validation")
"""Settings of a partition that every scheme has: they stay when a change names another scheme."""


def merge(base: dict[str, Any], *changes: dict[str, Any] | None) -> dict[str, Any]:
    """Return a copy of `base` with changes; of several values of a setting the last counts.

    A change that names another method or scheme replaces its whole section, but for `SHARED_BY_SCHEMES`.
    """
    result = copy.deepcopy(base)
    for change in changes:
        for key, value in (change or {}).items():
            old: Any = result.get(key)
            same = isinstance(old, dict) and isinstance(value, dict)
            tag = {"method": "name", "partition": "kind"}.get(key)
            if not same:
                result[key] = copy.deepcopy(value)
            elif tag in value and old.get(tag) != value[tag]:
                shared = {name: old[name] for name in SHARED_BY_SCHEMES if name in old and key == "partition"}
                result[key] = {**shared, **value}
            else:
                result[key] = merge(old, value)
    return result
