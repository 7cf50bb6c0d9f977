"""A message that travels on a link, and its size in bytes, counted for every method alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]
FACT_BYTES = 8
"""Size that is counted for one number beside the tensors of a message."""


@dataclass(frozen=True)
class Message:
    """A message between the server and a client, or between two clients.

    Attributes:
        tensors: parameters, centres, counts: counted at their size.
        facts: numbers and flags (JSON values), counted at 8 bytes each.
        samples: raw samples as indices into the training set, counted at the bytes of the samples themselves.
    """

    tensors: Tensors = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: Tensors = field(default_factory=dict)

    def size(self, sample_bytes: int) -> int:
        """Return the bytes on the link, where one raw sample has `sample_bytes`."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        facts = sum(map(_fact_count, self.facts.values()))
        samples = sum(index.numel() for index in self.samples.values())
        return tensors + FACT_BYTES * facts + sample_bytes * samples


def _fact_count(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_fact_count, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_fact_count, value))
    return 1
