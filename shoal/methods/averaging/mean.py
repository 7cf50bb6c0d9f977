"""Federated averaging: the weighted mean of client tensors (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shoal.methods.contract.message import Tensors

PART = 1 << 15
"""Numbers that are made float64 at once: memory for a wide copy of a large tensor costs more than the sum."""
TOGETHER = 4
"""Clients whose tensors are added while a part of the sum is at hand: memory is slower than sums."""


class WeightedMean:
    """A running weighted mean of tensors by name, in float64: memory of one model whatever the number of clients.

    Integer tensors (BatchNorm's batch counter) are averaged and rounded.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._waiting: list[tuple[Mapping[str, Tensor], float]] = []
        self._forms: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Count `tensors` in with `weight` (>= 0).

        Raises:
            ValueError: a negative weight, or other names or shapes than before.
        """
        self.check(tensors, weight)
        self._waiting.append((tensors, weight))
        self.weight += weight
        if len(self._waiting) >= TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add the tensors of the clients that wait, in their order: the same bits as one by one."""
        for name, (shape, _) in self._forms.items():
            flat = [tensors[name].reshape(-1) for tensors, _ in self._waiting]
            if name not in self._sums:
                self._sums[name] = torch.zeros(shape, dtype=torch.float64, device=flat[0].device)
            for total, *parts in zip(
                self._sums[name].view(-1).split(PART), *(each.split(PART) for each in flat), strict=True
            ):
                for part, (_, weight) in zip(parts, self._waiting, strict=True):
                    total.add_(part.double(), alpha=weight)
        self._waiting.clear()

    def check(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Refuse what `add` cannot count in; the first tensors say what all others must be."""
        if not weight >= 0:
            raise ValueError(f"a weight of {weight} cannot be averaged: weights are >= 0")
        if not self._forms:
            self._forms = {k: (t.shape, t.dtype) for k, t in tensors.items()}
        if tensors.keys() != self._forms.keys():
            odd = sorted(tensors.keys() ^ self._forms.keys())
            raise ValueError(f"updates differ in their tensors: {', '.join(odd[:3])}")
        for name, tensor in tensors.items():
            shape, _ = self._forms[name]
            if tensor.shape != shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(shape)}")

    def mean(self) -> Tensors:
        """The mean so far, in the dtypes that came in.

        Raises:
            ValueError: nothing was added, or all weights were 0.
        """
        if not self.weight:
            raise ValueError("no update with a positive weight: there is nothing to average")
        self._add_waiting()
        return {name: in_dtype(total / self.weight, self._forms[name][1]) for name, total in self._sums.items()}


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean in the dtype of what it is of, rounded where that holds whole numbers."""
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)
