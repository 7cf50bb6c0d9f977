"""A message: what travels on a link. Its size is counted for every method alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]
FACT_BYTES = 8
"""What one number beside the tensors of a message is counted as."""


@dataclass(frozen=True)
class Message:
    """What travels on a link.

    Attributes:
        tensors: parameters, centres, counts: counted at their size.
        facts: numbers and flags (JSON values) beside them, counted at 8 bytes each.
        samples: raw samples as indices into the training set; counted as the bytes the samples would be.
    """

    tensors: Tensors = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: Tensors = field(default_factory=dict)

    def size(self, sample_bytes: int) -> int:
        """Bytes on the link, where one raw sample costs `sample_bytes`."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return (
            tensors
            + FACT_BYTES * sum(map(_fact_count, self.facts.values()))
            + sample_bytes * sum(index.numel() for index in self.samples.values())
        )


def _fact_count(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_fact_count, value.values()))
    return sum(map(_fact_count, value)) if isinstance(value, list | tuple) else 1
