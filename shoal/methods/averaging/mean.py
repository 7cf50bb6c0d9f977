"""Federated averaging: the weighted mean of client tensors (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from shoal.methods.contract.blocks import BLOCK, blocks
from shoal.methods.contract.message import Tensors

TOGETHER = 4
"""Clients whose tensors are summed in one pass over the sums, which costs as much as reading four of them."""
TOGETHER_NUMBERS = 1 << 26
"""Of which they have at most so many together (a quarter of a gigabyte in float32)."""


class WeightedMean:
    """A running weighted mean of tensors by name, in float64: memory of one model whatever the number of clients.

    Integer tensors (BatchNorm's batch counter) are averaged and rounded.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._forms: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Count `tensors` in with `weight` (>= 0).

        Raises:
            ValueError: a negative weight, or other names or shapes than before.
        """
        self.add_all([(tensors, weight)])

    def add_all(self, counted: Iterable[tuple[Mapping[str, Tensor], float]]) -> None:
        """As `add` for each of several clients' tensors and weights, in order: the same bits, in less time.

        Raises:
            ValueError: see `add`; those before are counted in or not.
        """
        for group in together(counted):
            for tensors, weight in group:
                self.check(tensors, weight)
            if not self._sums:
                self._sums = {k: torch.zeros_like(t, dtype=torch.float64) for k, t in group[0][0].items()}
            for name, total in self._sums.items():
                for stack in blocks(total, *(tensors[name] for tensors, _ in group), size=BLOCK // 4):
                    add_up(stack, [weight for _, weight in group])
            for _, weight in group:
                self.weight += weight

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
        return {name: self._mean(total, self._forms[name][1]) for name, total in self._sums.items()}

    def _mean(self, total: Tensor, dtype: torch.dtype) -> Tensor:
        mean = torch.empty_like(total, dtype=dtype)
        for part, sums in blocks(mean, total):
            part.copy_(in_dtype(sums / self.weight, dtype))
        return mean


def add_up(stack: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Add to the first tensor the others, times their weights, one after another."""
    total, *parts = stack
    wide = torch.empty_like(total)
    for part, weight in zip(parts, weights, strict=True):
        # Made float64 first, in memory that is there: the bits of adding it as it is, in half the time.
        total.add_(wide.copy_(part), alpha=weight)


def together(
    counted: Iterable[tuple[Mapping[str, Tensor], float]],
) -> Iterator[list[tuple[Mapping[str, Tensor], float]]]:
    """Tensors and weights of clients in groups of `TOGETHER`, or of fewer where they are very large."""
    left = iter(counted)
    for first in left:
        numbers = sum(tensor.numel() for tensor in first[0].values())
        group_size = max(1, min(TOGETHER, TOGETHER_NUMBERS // max(1, numbers)))
        yield [first, *islice(left, group_size - 1)]


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A mean in the dtype of what it is of, rounded where that holds whole numbers."""
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)
