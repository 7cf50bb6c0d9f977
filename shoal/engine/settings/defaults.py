"""The defaults of a run's settings, and the settings that differ from them."""

from __future__ import annotations

from typing import Any

from shoal.core.errors import ShoalError
from shoal.engine.settings.run_settings import Settings, flatten, make_settings

DECIDE_DEFAULTS = ("method.name", "data.name", "partition.kind")
"""The settings on which the defaults of the others depend."""


def default_settings(settings: Settings) -> dict[str, Any]:
    """Return the defaults of all settings of runs with this method, data set and partition scheme, on one level.

    Args:
        settings: of a run.

    >>> default_settings(make_settings({"method": "fedcc", "rounds": 3}))["rounds"]
    10
    """
    values = settings.to_json()
    named = {}
    for path in DECIDE_DEFAULTS:
        section, _, key = path.partition(".")
        named[section] = {key: values[section][key]}
    try:
        return flatten(make_settings(named))
    except ShoalError:  # the method requires a setting that has no default
        return flatten(make_settings({}))


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their method, data set and partition scheme.

    Args:
        settings: of a run.

    >>> changed_settings(make_settings({"method": "fedcc", "rounds": 3, "local": {"lr": 0.01}}))
    {'rounds': 3, 'local.lr': 0.01}
    """
    default = default_settings(settings)
    return {
        key: value
        for key, value in flatten(settings).items()
        if key not in DECIDE_DEFAULTS and (key not in default or value != default[key])
    }
