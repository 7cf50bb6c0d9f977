"""Sets of the user's own, added with the options as keywords."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.intake_notes import Intake
from shoal.data.sets.prepared import PreparedSet


def add_set(path: Path, name: str, store: Path, *, intake: Intake | None = None, **options: Any) -> PreparedSet:
    """As `shoal data add` does, whatever the path holds."""
    return add(path, name, store, AddOptions(**options), intake)
