"""Means that a few hostile clients cannot pull away: clipped, by coordinate, or over updates that lie close together.

- A norm bound (Sun, Kairouz, Suresh, McMahan 2019, arXiv 1911.07963): a longer update is scaled down to the bound.
- The coordinate-wise median and the trimmed mean (Yin, Chen, Ramchandran, Bartlett 2018, arXiv 1803.01498).
- Krum and multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017, NeurIPS): of m updates, f of them hostile, the
  one with the least sum of squared distances to its m - f - 2 nearest, or the mean of the m - f best.

Median and trimmed mean weigh all clients equally, as in their paper, and guard against a share of the clients. The mean
and multi-Krum weigh by samples; the paper of Krum has clients of one size. The weighted mean holds one model in memory,
the others hold the updates of all clients of a round.

Symbols in shapes: m clients, p values of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.methods.averaging.mean import WeightedMean, in_dtype
from shoal.methods.averaging.vectors import mean_vector
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.contract.message import Tensors


class RobustMean(WeightedMean):
    """A mean like `WeightedMean`, by a rule of the settings, computed once all updates were added.

    Args:
        settings: the rule and the bound.
        start: the tensors that clients began from, by name; updates are measured from them, or from 0 without them.
    """

    def __init__(self, settings: AggregationSettings, start: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._start = start or {}
        self._rows: list[Tensors] = []
        self._weights: list[float] = []

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add `tensors` with `weight`; a weight of 0 leaves them out."""
        self.check(tensors, weight)
        if weight:
            self._rows.append(dict(tensors))
            self._weights.append(weight)
            self.weight += weight

    def mean(self) -> Tensors:
        """Return the aggregate, in the dtypes of the tensors that were added.

        Raises:
            ValueError: nothing was added, or all weights were 0.
        """
        if not self._rows:
            return super().mean()
        rows = self._clipped()
        if self._settings.rule in ("median", "trimmed_mean"):
            return self._middle(rows)
        mean = WeightedMean()
        for k in self._selected(rows):
            mean.add(rows[k], self._weights[k])
        return mean.mean()

    def _middle(self, rows: Sequence[Tensors]) -> Tensors:
        """Return the median or the trimmed mean of each coordinate."""
        middle: Tensors = {}
        for name, first in rows[0].items():
            values = torch.stack([row[name].double() for row in rows])
            if self._settings.rule == "median":
                middle[name] = in_dtype(coordinate_median(values), first.dtype)
            else:
                middle[name] = in_dtype(trimmed_mean(values, self._settings.hostile), first.dtype)
        return middle

    def _selected(self, rows: Sequence[Tensors]) -> Sequence[int]:
        """Return the rows, ascending, whose weighted mean is the aggregate: all of them, or the best by Krum."""
        rule = self._settings.rule
        if rule == "mean":
            return range(len(rows))
        scores = krum_scores(torch.stack([self._update(row) for row in rows]), self._settings.hostile)
        best = sorted(range(len(rows)), key=lambda k: (scores[k], k))
        count = 1 if rule == "krum" else len(rows) - hostile_count(len(rows), self._settings.hostile)
        return sorted(best[:count])

    def _start_of(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor, float64, that clients began from; zeros where it is not known."""
        if name in self._start:
            return self._start[name].double()
        return torch.zeros_like(tensor, dtype=torch.float64)

    def _update(self, row: Tensors) -> Tensor:
        """Return a client's change as one vector float64 (p,), without integers (counts of batches)."""
        changes = [(t.double() - self._start_of(name, t)) for name, t in row.items() if t.is_floating_point()]
        return torch.cat([change.reshape(-1) for change in changes])

    def _clipped(self) -> list[Tensors]:
        """Return the clients' tensors, with updates longer than the bound scaled down to it."""
        s = self._settings
        if not s.clip:
            return self._rows
        norms = torch.stack([self._update(row).norm() for row in self._rows])
        return [
            self._scaled(row, s.clip / float(norm)) if norm > s.clip else row
            for row, norm in zip(self._rows, norms, strict=True)
        ]

    def _scaled(self, row: Tensors, factor: float) -> Tensors:
        scaled = {}
        for name, t in row.items():
            if t.is_floating_point():
                start = self._start_of(name, t)
                t = (start + factor * (t.double() - start)).to(t.dtype)
            scaled[name] = t
        return scaled


def coordinate_median(rows: Tensor) -> Tensor:
    """Return the median of each coordinate of rows (m, ...); for an even m the mean of the two in the middle.

    >>> coordinate_median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [90.0, 1.0], [3.0, 2.0]]))
    tensor([2.5000, 1.5000])
    """
    ordered = rows.sort(0).values
    m = len(rows)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """Return the mean of each coordinate of rows (m, ...) without a share (< 0.5) of values at each end.

    >>> trimmed_mean(torch.tensor([1.0, 2.0, 4.0, -500.0, 90.0]), 0.2)
    tensor(2.3333)
    """
    cut = hostile_count(len(rows), share)
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)


def krum_scores(rows: Tensor, hostile: float) -> list[float]:
    """Return for each row of (m, p) the sum of squared distances to its m - f - 2 nearest others, at least one."""
    m = len(rows)
    squared = torch.stack([(rows - row).square().sum(1) for row in rows]).fill_diagonal_(torch.inf)
    nearest = max(1, m - hostile_count(m, hostile) - 2)
    return squared.sort(1).values[:, :nearest].sum(1).tolist()


def hostile_count(clients: int, share: float) -> int:
    """Return the number of clients in a share of them, always less than half.

    >>> [hostile_count(10, 0.3), hostile_count(4, 0.49), hostile_count(2, 0.49), hostile_count(1, 0.2)]
    [3, 1, 0, 0]
    """
    return min(int(share * clients + 1e-9), (clients - 1) // 2)


def mean_by(settings: AggregationSettings, start: Mapping[str, Tensor] | None = None) -> WeightedMean:
    """Return an empty mean of the settings' rule: the weighted mean, or a robust one."""
    if settings.is_mean:
        return WeightedMean()
    return RobustMean(settings, start)


def aggregated(
    updates: Iterable[Update], settings: AggregationSettings, start: Mapping[str, Tensor] | None = None
) -> Tensors:
    """Return the mean of the updates' tensors, weighted by the fact `n` of each message, or by the settings' rule.

    Args:
        updates: of the clients.
        settings: the rule and the bound.
        start: the tensors that the clients were sent, by name.

    Raises:
        ValueError: see `WeightedMean`.
    """
    mean = mean_by(settings, start)
    for update in updates:
        mean.add(update.message.tensors, float(update.message.facts["n"]))
    return mean.mean()


def aggregated_vectors(
    vectors: Sequence[Tensor], shares: Sequence[float], settings: AggregationSettings, start: Tensor | None = None
) -> Tensor:
    """Return the mean of vectors (p,) weighted by shares that sum to 1, or their aggregate by the settings' rule."""
    if settings.is_mean:
        return mean_vector(vectors, shares)
    mean = RobustMean(settings, None if start is None else {"vector": start})
    for vector, share in zip(vectors, shares, strict=True):
        mean.add({"vector": vector}, share)
    return mean.mean()["vector"]
