"""The mean of the flows that clients trained, and the sums of their reports (algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import AggregationSettings


class FlowMeans(NamedTuple):
    """The reports of a round, summed or averaged over all clients.

    Attributes:
        flows: the mean of each flow by points of its cluster, (p,); None where nobody could train it.
        counts: number of points that each flow was trained on.
        points: number of points of each flow.
        changed: number of points that changed their cluster.
    """

    flows: list[Tensor | None]
    counts: list[int]
    points: list[int]
    changed: int

    @property
    def empty(self) -> list[int]:
        """Flows without a point."""
        return [k for k, number in enumerate(self.points) if not number]

    @property
    def diverged(self) -> list[int]:
        """Flows that had points, and no finite result from any client."""
        return [k for k, number in enumerate(self.counts) if not number and self.points[k]]

    def filled(self, starts: Tensor) -> Tensor:
        """Return all flows (K, p): the means, and the start (K, p) of a flow that nobody could train."""
        return torch.stack([start if mean is None else mean for mean, start in zip(self.flows, starts, strict=True)])


def average(updates: Iterable[Update], starts: Tensor, settings: AggregationSettings) -> FlowMeans:
    """Average each of K flows over the clients by their points of its cluster, and sum their reports.

    Args:
        updates: of the clients.
        starts: the flows that they began from, (K, p).
        settings: the rule that takes the place of the mean.
    """
    clusters = len(starts)
    means = [mean_by(settings, {"flow": start}) for start in starts]
    counts = [0] * clusters
    points = [0] * clusters
    changed = 0
    for update in updates:
        facts = update.message.facts
        changed += facts["changed"]
        for k, count in enumerate(facts["counts"]):
            points[k] += facts["points"][k]
            counts[k] += count
            if count:
                means[k].add({"flow": update.message.tensors[f"flow/{k}"]}, count)
    flows = [mean.mean()["flow"] if mean.weight else None for mean in means]
    return FlowMeans(flows, counts, points, changed)
