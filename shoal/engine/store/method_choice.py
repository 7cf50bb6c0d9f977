"""The method that was chosen for a run with `method.name: auto`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.records import BadRecord, record_from_json, record_to_json
from shoal.engine.store.codec import StoreError, read_sealed, write_sealed
from shoal.methods.auto import Facts


@dataclass(frozen=True)
class MethodChoice:
    """A method, and how it was chosen.

    Args:
        method: its name.
        reason: why this one, in a sentence.
        settings: what the rule sets, nested; settings that the user names win.
        facts: what was known and measured.
        unused: sentence about settings that the user named and the method does not use; empty where it uses all.
        data_digest, partition_digest, settings_sha256: of what it was chosen for.
    """

    method: str
    reason: str
    settings: Mapping[str, Any]
    facts: Facts
    unused: str
    data_digest: str
    partition_digest: str
    settings_sha256: str


def write_method_choice(path: Path, choice: MethodChoice) -> None:
    """Write a choice to a file; make the folder where it is missing.

    Raises:
        StoreError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, record_to_json(choice))


def read_method_choice(path: Path) -> MethodChoice:
    """Read a choice from its file.

    Raises:
        StoreError: the file is missing, damaged, or holds no choice.
    """
    try:
        return record_from_json(MethodChoice, read_sealed(path))
    except BadRecord as error:
        raise StoreError(f"{path} is no choice of a method: {error}") from None
