"""Means that a few hostile clients cannot pull away: clipped, by coordinate, or of the updates that lie close together.

- A norm bound (Sun, Kairouz, Suresh, McMahan 2019, arXiv 1911.07963): a longer update is scaled down to the bound.
- The coordinate-wise median and the trimmed mean (Yin, Chen, Ramchandran, Bartlett 2018, arXiv 1803.01498).
- Krum and multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017, NeurIPS): of m updates, f of them hostile, the
  one with the least sum of squared distances to its m - f - 2 nearest, or the mean of the m - f best.

Median and trimmed mean count every client alike, as in their paper: a share of the clients is what they guard against.
The mean and multi-Krum weigh by samples; the paper of Krum knows clients of one size. The plain weighted mean holds one
model in memory, these hold the updates of all clients of a round.

Symbols in shapes: m clients, p numbers of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from shoal.methods.averaging.mean import WeightedMean, in_dtype
from shoal.methods.averaging.vectors import mean_vector
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.contract.message import Tensors


class RobustMean(WeightedMean):
    """What `WeightedMean` is, by a rule of the settings, once all updates are there.

    Args:
        settings: the rule and the bound.
        start: what clients began from, by name; updates are measured from it. Without it from 0.
    """

    def __init__(self, settings: AggregationSettings, start: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self._settings, self._start = settings, start or {}
        self._rows: list[Tensors] = []
        self._weights: list[float] = []

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """As of `WeightedMean`; one of weight 0 has no say."""
        self.check(tensors, weight)
        if weight:
            self._rows.append(dict(tensors))
            self._weights.append(weight)
            self.weight += weight

    def add_all(self, counted: Iterable[tuple[Mapping[str, Tensor], float]]) -> None:
        """As `add` for each of several."""
        for tensors, weight in counted:
            self.add(tensors, weight)

    def mean(self) -> Tensors:
        """The aggregate, in the dtypes that came in.

        Raises:
            ValueError: nothing was added, or all weights were 0.
        """
        if not self._rows:
            return super().mean()
        rule, rows = self._settings.rule, self._clipped()
        if rule in ("median", "trimmed_mean"):
            middle = coordinate_median if rule == "median" else self._trimmed
            return {
                name: in_dtype(middle(torch.stack([row[name].double() for row in rows])), first.dtype)
                for name, first in rows[0].items()
            }
        kept: Sequence[int] = range(len(rows))
        if rule != "mean":
            scores = krum_scores(torch.stack([self._update(row) for row in rows]), self._settings.hostile)
            best = sorted(range(len(rows)), key=lambda k: (scores[k], k))
            kept = sorted(best[: 1 if rule == "krum" else len(rows) - hostile_of(len(rows), self._settings.hostile)])
        mean = WeightedMean()
        mean.add_all((rows[k], self._weights[k]) for k in kept)
        return mean.mean()

    def _trimmed(self, rows: Tensor) -> Tensor:
        return trimmed_mean(rows, self._settings.hostile)

    def _update(self, row: Tensors) -> Tensor:
        """What a client changed, as one vector float64 (p,); integers (counts of batches) aside."""
        parts = [
            (t.double() - self._start[name].double() if name in self._start else t.double()).reshape(-1)
            for name, t in row.items()
            if t.is_floating_point()
        ]
        return torch.cat(parts)

    def _clipped(self) -> list[Tensors]:
        """The clients' tensors, those of longer updates than the bound moved back towards the start."""
        s = self._settings
        if not s.clip:
            return self._rows
        norms = torch.stack([self._update(row).norm() for row in self._rows])
        bound = s.clip if s.clip_by == "norm" else s.clip * float(coordinate_median(norms))
        return [
            self._scaled(row, bound / float(norm)) if norm > bound else row
            for row, norm in zip(self._rows, norms, strict=True)
        ]

    def _scaled(self, row: Tensors, factor: float) -> Tensors:
        scaled = {}
        for name, t in row.items():
            if t.is_floating_point():
                start = self._start[name].double() if name in self._start else torch.zeros_like(t, dtype=torch.float64)
                t = (start + factor * (t.double() - start)).to(t.dtype)
            scaled[name] = t
        return scaled


def coordinate_median(rows: Tensor) -> Tensor:
    """The median of each coordinate of rows (m, ...); of an even number the mean of the two in the middle.

    >>> coordinate_median(torch.tensor([[1.0, 5.0], [2.0, 0.0], [90.0, 1.0], [3.0, 2.0]]))
    tensor([2.5000, 1.5000])
    """
    ordered, m = rows.sort(0).values, len(rows)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """The mean of each coordinate of rows (m, ...) without a share of the largest and of the smallest, below a half.

    >>> trimmed_mean(torch.tensor([1.0, 2.0, 4.0, -500.0, 90.0]), 0.2)
    tensor(2.3333)
    """
    cut = hostile_of(len(rows), share)
    return rows.sort(0).values[cut : len(rows) - cut].mean(0)


def krum_scores(rows: Tensor, hostile: float) -> list[float]:
    """Of each row of (m, p) the sum of squared distances to its m - f - 2 nearest others, one at least."""
    m = len(rows)
    squared = torch.stack([(rows - row).square().sum(1) for row in rows]).fill_diagonal_(torch.inf)
    nearest = max(1, m - hostile_of(m, hostile) - 2)
    return squared.sort(1).values[:, :nearest].sum(1).tolist()


def hostile_of(clients: int, share: float) -> int:
    """How many of some clients a share is, fewer than half of them.

    >>> [hostile_of(10, 0.3), hostile_of(4, 0.49), hostile_of(2, 0.49), hostile_of(1, 0.2)]
    [3, 1, 0, 0]
    """
    return min(int(share * clients + 1e-9), (clients - 1) // 2)


def mean_by(settings: AggregationSettings, start: Mapping[str, Tensor] | None = None) -> WeightedMean:
    """The running mean that the settings want; by default the plain weighted one."""
    return WeightedMean() if settings.is_mean else RobustMean(settings, start)


def aggregated(
    updates: Iterable[Update], settings: AggregationSettings, start: Mapping[str, Tensor] | None = None
) -> Tensors:
    """The mean of the updates' tensors by the fact `n` of each message, or what the settings put in its place.

    Args:
        updates: of the clients, or of groups of clients whose messages a worker has summed.
        settings: the rule and the bound.
        start: what the clients were sent, by name; sums are rounded to these dtypes.

    Raises:
        ValueError: see `WeightedMean`; sums where the settings want each update.
    """
    mean = mean_by(settings, start)

    def single() -> Iterator[tuple[Mapping[str, Tensor], float]]:
        for update in updates:
            weight = float(update.message.facts["n"])
            if not update.summed:
                yield update.message.tensors, weight
            elif settings.is_mean:
                mean.add_sums(update.message.tensors, weight, start or {})
            else:
                raise ValueError("a sum of updates does not tell what a robust mean or a bound needs of each")

    mean.add_all(single())
    return mean.mean()


def aggregated_vectors(
    vectors: Sequence[Tensor], shares: Sequence[float], settings: AggregationSettings, start: Tensor | None = None
) -> Tensor:
    """Vectors (p,) weighted by shares that sum to 1: `mean_vector`, or what the settings put in its place."""
    if settings.is_mean:
        return mean_vector(vectors, shares)
    mean = RobustMean(settings, None if start is None else {"vector": start})
    for vector, share in zip(vectors, shares, strict=True):
        mean.add({"vector": vector}, share)
    return mean.mean()["vector"]
