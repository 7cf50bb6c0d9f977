"""What a study's cells are computed with, as digests: two cells of one digest and seed are one number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.studies.cells import Cell, cells
from shoal.studies.definition import Study

ELSEWHERE = ("tracking", "workers", "checkpoint")
"""Settings of where a run is carried out and shown, which change nothing of what it comes to."""


def decisive(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings that are laid over every cell those that change numbers."""
    return {key: value for key, value in overrides.items() if key not in ELSEWHERE}


def digest(study: Study, cell: Cell, overrides: Mapping[str, Any]) -> str:
    """A digest of all settings of a cell but the seed, defaults included, in 16 hexadecimal digits."""
    if study.simulate:
        settings = merge(cell.settings, decisive(overrides))
        identity = json.dumps([f"{study.system}.{study.simulate}", settings], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:16]
    return make_settings(merge(cell.settings, dict(overrides), {"seed": 0})).digest()[:16]


def digests(study: Study, scale: str, overrides: Mapping[str, Any]) -> dict[str, str]:
    """The digest of each cell of a study at a scale, by `row/column`."""
    return {f"{cell.row.key}/{cell.column.key}": digest(study, cell, overrides) for cell in cells(study, scale, 1)}
