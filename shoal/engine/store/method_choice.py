"""The record of the method that was chosen for a run with `method.name: auto`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.methods.auto import Facts


@dataclass(frozen=True)
class MethodChoice:
    """A method, and how it was chosen.

    Args:
        method: name of the method.
        reason: why this method, in a sentence.
        settings: nested settings of the rule; those that the user named prevail.
        facts: facts about the data, from which the rule decides.
        unused: sentence about settings that the user named and the method does not use; empty: it uses all.
        data_digest, partition_digest, settings_sha256: digests of the data, partition and settings of the choice.
    """

    method: str
    reason: str
    settings: Mapping[str, Any]
    facts: Facts
    unused: str
    data_digest: str
    partition_digest: str
    settings_sha256: str
