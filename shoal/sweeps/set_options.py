"""Settings as `--set` options of the command that repeats a run or a study."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.yaml_text import read_yaml


def set_options(settings: dict[str, Any]) -> str:
    """Return nested settings as options, with a space before each.

    >>> set_options({"method": "fedpnp", "local": {"lr": 0.01}})
    ' --set method=fedpnp --set local.lr=0.01'
    """
    return "".join(f" --set {shlex.quote(f'{key}={yaml_text(value)}')}" for key, value in flat(settings))


def flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return nested settings by dotted key; `options` of a data set, and what is empty, stay whole."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict) and value and key != "options":
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def yaml_text(value: Any) -> str:
    """Return a value on one line, as `--set` reads it back.

    >>> yaml_text(None), yaml_text("on"), yaml_text(1e-05), yaml_text([1, 2])
    ('null', '"on"', '1.0e-05', '[1, 2]')
    """
    if isinstance(value, str):
        if is_plain(value):
            return value
        return json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        # YAML reads 1e-05, without a point, as a word.
        if "e" in text and "." not in text:
            return text.replace("e", ".0e")
        return text
    return json.dumps(value)


def is_plain(text: str) -> bool:
    """Return whether YAML reads a text as itself, without quotes."""
    try:
        return bool(read_yaml(text, "a value", ShoalError) == text)
    except ShoalError:
        return False
