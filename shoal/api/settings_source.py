"""Settings from Python: a file, a mapping, keywords, or checked settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import Settings, SettingsError, expand_names, load_settings, make_settings

SettingsSource: TypeAlias = "Settings | Mapping[str, Any] | str | Path | None"


def settings_of(source: SettingsSource, changes: Mapping[str, Any]) -> Settings:
    """Return checked settings.

    Args:
        source: a settings file (YAML), a mapping of sections or of dotted paths such as {"data.name": "digits"},
            settings, or nothing: the defaults.
        changes: sections by name, merged over those of `source`, such as {"rounds": 3, "method": "fedcc"}.

    Raises:
        SettingsError: an unreadable file, or a wrong setting, by its path.
    """
    overrides = nested(changes)
    if isinstance(source, str | Path):
        return load_settings(Path(source), changes=overrides)
    if isinstance(source, Settings):
        base = source.to_json()
        if overrides.get("method", {}).get("name", source.method.name) != source.method.name:
            del base["local"]  # the other method has defaults of its own
        return make_settings(merge(base, overrides))
    return load_settings(changes=merge(nested(source or {}), overrides))


def nested(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted paths as nested dictionaries, and words as the sections that they stand for.

    >>> nested({"method": "fedcc", "data.name": "digits", "data": {"limit": 100}})
    {'method': {'name': 'fedcc'}, 'data': {'name': 'digits', 'limit': 100}}
    """
    found: dict[str, Any] = {}
    for path, value in source.items():
        if not isinstance(path, str):
            raise SettingsError(f"{path!r} names no setting: expected a word such as rounds, or a path as data.name")
        for step in reversed(path.split(".")):
            value = {step: dict(value) if isinstance(value, Mapping) else value}
        found = merge(found, expand_names(value))
    return found
