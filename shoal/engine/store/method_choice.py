"""The method that was chosen for a run with `method.name: auto`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
