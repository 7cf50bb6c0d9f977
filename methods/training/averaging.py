"""Federated averaging: the weighted mean of client tensors (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from methods.base import Tensors, Update


class WeightedMean:
    """A running weighted mean of tensors by name, in float64: memory of one model whatever the number of clients.

    Integer tensors (BatchNorm's batch counter) are averaged and rounded.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.weight = 0.0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Count `tensors` in with `weight` (>= 0).

        Raises:
            ValueError: a negative weight, or other names or shapes than before.
        """
        if weight < 0:
            raise ValueError(f"a weight of {weight} cannot be averaged: weights are >= 0")
        if not self._sums:
            self._sums = {k: torch.zeros_like(t, dtype=torch.float64) for k, t in tensors.items()}
            self._dtypes = {k: t.dtype for k, t in tensors.items()}
        if tensors.keys() != self._sums.keys():
            odd = sorted(tensors.keys() ^ self._sums.keys())
            raise ValueError(f"updates differ in their tensors: {', '.join(odd[:3])}")
        for name, tensor in tensors.items():
            if tensor.shape != self._sums[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(self._sums[name].shape)}")
            self._sums[name].add_(tensor, alpha=weight)
        self.weight += weight

    def mean(self) -> Tensors:
        """The mean so far, in the dtypes that came in.

        Raises:
            ValueError: nothing was added, or all weights were 0.
        """
        if not self.weight:
            raise ValueError("no update with a positive weight: there is nothing to average")
        return {name: _as(total / self.weight, self._dtypes[name]) for name, total in self._sums.items()}


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)


def average(updates: Iterable[Update], *, by: str = "n") -> Tensors:
    """The mean of the updates' tensors, weighted by the fact `by` of each message (its number of samples).

    Raises:
        ValueError: see `WeightedMean`.
    """
    mean = WeightedMean()
    for update in updates:
        mean.add(update.message.tensors, float(update.message.facts[by]))
    return mean.mean()
