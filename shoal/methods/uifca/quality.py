"""Scores of an assignment of all clients' points: against known true classes, and by its losses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class CurrentAssignment(NamedTuple):
    """The assignment under the current flows, of the points of all clients, client after client.

    Attributes:
        cluster: int64 (n,).
        truth: the true class, int64 (n,); None where the data has no labels.
        loss: -log p under the flow of the point's cluster, nats, (n,).
    """

    cluster: Tensor
    truth: Tensor | None
    loss: Tensor


def majority(truth: Tensor, cluster: Tensor) -> Tensor:
    """Return whether each point has its cluster's most frequent class, bool (n,)."""
    right = torch.zeros(len(truth), dtype=torch.bool)
    for k in cluster.unique():
        inside = cluster == k
        right[inside] = truth[inside] == truth[inside].mode().values
    return right


def point_scores(assignment: CurrentAssignment, loss: Tensor) -> dict[str, float]:
    """Return mean losses of the clients' points; with known true classes those of right and wrong points, too.

    Args:
        assignment: the assignment of the clients' points.
        loss: its losses in the reported unit, (n,).

    Returns:
        `loss_all`; with true classes also `loss_right` and `loss_wrong`, of points with and without the majority class
        of their cluster. A mean that is not finite is left out.
    """
    metrics = _mean("loss_all", loss)
    if assignment.truth is None:
        return metrics
    right = majority(assignment.truth, assignment.cluster)
    return metrics | _mean("loss_right", loss[right]) | _mean("loss_wrong", loss[~right])


def _mean(name: str, loss: Tensor) -> dict[str, float]:
    return {name: float(loss.mean())} if len(loss) and bool(torch.isfinite(loss).all()) else {}
