"""Nested settings laid over one another: what studies, the demonstration and tests change of a common base."""

from __future__ import annotations

import copy
from typing import Any


def merge(base: dict[str, Any], *changes: dict[str, Any] | None) -> dict[str, Any]:
    """Nested dictionaries laid over one another; naming another method or scheme replaces its section."""
    result = copy.deepcopy(base)
    for change in changes:
        for key, value in (change or {}).items():
            old: Any = result.get(key)
            same = isinstance(old, dict) and isinstance(value, dict)
            tag = {"method": "name", "partition": "kind"}.get(key)
            if same and tag and tag in value and old.get(tag) != value[tag]:
                kept = {k: old[k] for k in ("clients", "validation") if k in old} if key == "partition" else {}
                result[key] = {**kept, **value}
            else:
                result[key] = merge(old, value) if same else copy.deepcopy(value)
    return result
