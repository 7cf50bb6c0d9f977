"""Settings as `--set` options of the command that repeats a run or a study."""

from __future__ import annotations

import json
import shlex
from typing import Any


def set_options(settings: dict[str, Any]) -> str:
    """Return nested settings as options, with a space before each.

    >>> set_options({"method": "fedpnp", "local": {"lr": 0.01}})
    ' --set method=fedpnp --set local.lr=0.01'
    """
    return "".join(f" --set {shlex.quote(f'{key}={option_text(value)}')}" for key, value in flat(settings))


def flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested settings by dotted key; `options` of a data set, and what is empty, stay whole."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict) and value and key != "options":
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def option_text(value: Any) -> str:
    """Return a value on one line, as `--set` reads it back.

    >>> option_text(None), option_text("on"), option_text(1e-05), option_text([1, 2])
    ('null', 'on', '1e-05', '[1, 2]')
    """
    if isinstance(value, str) and value[:1] not in ("[", "{", "'", '"') and value == value.strip():
        return value
    return json.dumps(value)
