"""Measures of one cluster in one round: norms, similarities, the best bipartition, separation gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.methods.cfl.bipartition import Bipartition, bipartition, cosine_matrix, separation_gap
from shoal.methods.contract.base import Update


@dataclass(frozen=True, eq=False)
class ClusterMeasure:
    """The measures of one cluster in one round. A measure that was not taken is None, and is not logged.

    Attributes:
        node: the cluster's number in the tree.
        mean_norm: norm of the cluster's mean update (eq. 32).
        max_norm: norm of its longest client update (eq. 33).
        median_norm: median norm of its clients' updates: one client with a wild update does not move it.
        cross: the largest similarity across the best bipartition (eq. 25).
        gap: separation gap (eq. 28), where groups are planted.
        alpha: the cosine similarities (eq. 44), float64 (m, m); not logged.
        groups: their best bipartition, as rows of `alpha`; not logged.
    """

    node: int
    mean_norm: float
    max_norm: float
    median_norm: float
    cross: float | None = None
    gap: float | None = None
    alpha: np.ndarray | None = None
    groups: Bipartition | None = None

    def entry(self) -> dict[str, Any]:
        """Return the measures as JSON values for the server's log."""
        return {k: v for k, v in vars(self).items() if v is not None and k not in ("alpha", "groups")}


def measured_cluster(node: int, rows: Tensor, mean: Tensor, truth: Sequence[int]) -> ClusterMeasure:
    """Measure a cluster; of one client only norms.

    Args:
        node: the cluster's number.
        rows: the updates of its clients (m, p).
        mean: the cluster's mean update (p,).
        truth: the planted group of each; empty where none is planted.
    """
    norms = rows.double().norm(dim=1)
    measure = ClusterMeasure(node, float(mean.double().norm()), float(norms.max()), float(norms.median()))
    if len(rows) < 2:
        return measure
    alpha = cosine_matrix(rows)
    groups = bipartition(alpha)
    gap = separation_gap(alpha, np.array(truth)) if truth else None
    return replace(measure, alpha=alpha, groups=groups, cross=groups.cross, gap=gap)


def stack(updates: Mapping[int, Update], clients: Sequence[int], name: str, size: int | None = None) -> Tensor:
    """Return the first `size` numbers of a tensor of each client's message, (m, p)."""
    return torch.stack([updates[client].message.tensors[name][:size] for client in clients])
