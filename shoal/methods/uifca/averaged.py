"""The mean of the flows that clients trained, and the sums of what they report beside them (algorithm 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Update
from shoal.methods.contract.context import AggregationSettings
from shoal.methods.uifca.state import LearnReport


class Averaged(NamedTuple):
    """What a round's reports come to, over all clients.

    Attributes:
        flows: the mean of each flow by points of its cluster, (p,); None where nobody could train it.
        counts, points: of each flow, the points it was trained on, and the points it had.
        changed: points that changed their cluster.
        clients: who reported.
        held: of each flow, summed losses and numbers of held-out points: float64 (2, K).
    """

    flows: list[Tensor | None]
    counts: list[int]
    points: list[int]
    changed: int
    clients: list[int]
    held: Tensor


def average(updates: Iterable[Update], starts: Tensor, settings: AggregationSettings) -> Averaged:
    """The mean of each of K flows over the clients, by their points of its cluster, and the sums of their reports.

    Args:
        updates: of the clients.
        starts: the flows that they began from, (K, p).
        settings: what may stand in place of the mean.
    """
    clusters = len(starts)
    means = [mean_by(settings, {"flow": start}) for start in starts]
    counts, points, changed, who = [0] * clusters, [0] * clusters, 0, []
    held = torch.zeros(2, clusters, dtype=torch.float64)
    for update in updates:
        report = LearnReport.from_message(update.message)
        changed += report.changed
        who.append(update.client)
        for k, count in enumerate(report.counts):
            points[k] += report.points[k]
            counts[k] += count
            if count:
                means[k].add({"flow": update.message.tensors[f"flow/{k}"]}, count)
        if report.held_loss:
            held += torch.tensor([report.held_loss, report.held_count], dtype=torch.float64)
    found = [mean.mean()["flow"] if mean.weight else None for mean in means]
    return Averaged(found, counts, points, changed, who, held)
