"""Digests of the settings of a study's cells: two cells with the same digest and seed have the same numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal_research.cells import Cell, cells
from shoal_research.definition import Study

NOT_DECISIVE = ("tracking", "workers", "checkpoint")
"""Settings of where a run is executed and logged, which change no number."""
DIGITS = 16
"""Hexadecimal digits of a digest."""


def decisive(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that change numbers."""
    return {key: value for key, value in overrides.items() if key not in NOT_DECISIVE}


def simulation_digest(study: Study, *identity: Any) -> str:
    """Return a digest of the function that simulates a study and what it is given, as JSON."""
    text = json.dumps([f"{study.system}.{study.simulate}", *identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def digest(study: Study, cell: Cell, overrides: Mapping[str, Any]) -> str:
    """Return a digest of all settings of a cell but the seed, defaults included."""
    if study.simulate:
        return simulation_digest(study, merge(cell.settings, decisive(overrides)))
    return make_settings(merge(cell.settings, dict(overrides), {"seed": 0})).digest()[:DIGITS]


def digests(study: Study, scale: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each cell of a study at a scale, by `row/column`."""
    return {f"{cell.row.key}/{cell.column.key}": digest(study, cell, overrides) for cell in cells(study, scale, 1)}
