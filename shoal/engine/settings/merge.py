"""Merge nested settings: studies, the demonstration and tests change a common base."""

from __future__ import annotations

import copy
from typing import Any

SHARED_BY_SCHEMES = ("clients", "validation")
"""Settings of a partition that stay when a change names another scheme."""


def merge(base: dict[str, Any], *changes: dict[str, Any] | None) -> dict[str, Any]:
    """Return `base` with changes, the last of which counts; another method or scheme replaces its section."""
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
