"""Measures of one cluster in one round: norms, similarities, the best bipartition, separation gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.methods.cfl.bipartition import Bipartition, cosine_matrix, separation_gap
from shoal.methods.contract.base import Update

SimilarityOf = Literal["updates", "gradients", "both"]


@dataclass(frozen=True, eq=False)
class ClusterMeasure:
    """The measures of one cluster in one round. A measure that was not taken is None, and is not logged.

    Attributes:
        node: the cluster's number in the tree.
        mean_norm: norm of the cluster's mean update (eq. 32).
        max_norm: norm of its longest client update (eq. 33).
        median_norm: median norm of its clients' updates: one client with a wild update does not move it.
        gamma: the median of the noise that its clients measured, if all did (`shoal.methods.cfl.gamma`).
        cross: the largest similarity across the best bipartition (eq. 25).
        gap: separation gap (eq. 28) of the similarities in use, where groups are planted.
        gap_round: with a history, the gap of this round's updates alone.
        gap_gradients: with `similarity: both`, the gap of the full gradients.
        alpha: the similarities in use, float64 (m, m); not logged.
        groups: their best bipartition, as rows of `alpha`; not logged.
    """

    node: int
    mean_norm: float
    max_norm: float
    median_norm: float
    gamma: float | None = None
    cross: float | None = None
    gap: float | None = None
    gap_round: float | None = None
    gap_gradients: float | None = None
    alpha: np.ndarray | None = None
    groups: Bipartition | None = None

    @classmethod
    def from_facts(cls, entry: Mapping[str, Any]) -> ClusterMeasure:
        """Read the measures from a log entry."""
        return cls(**entry)

    def entry(self) -> dict[str, Any]:
        """Return the measures as JSON values for the server's log."""
        return {k: v for k, v in vars(self).items() if v is not None and k not in ("alpha", "groups")}


def measure_norms(node: int, rows: Tensor, mean: Tensor) -> ClusterMeasure:
    """Measure the norms of a cluster's updates in this round.

    Args:
        node: the cluster's number.
        rows: the updates of its clients (m, p).
        mean: the cluster's mean update (p,).
    """
    norms = rows.double().norm(dim=1)
    return ClusterMeasure(node, float(mean.double().norm()), float(norms.max()), float(norms.median()))


@dataclass(frozen=True)
class Similarities:
    """Cosine similarities (eq. 44) of a cluster's clients, each float64 (m, m).

    Attributes:
        used: of what the bipartition is computed from.
        gradients: of the full gradients, where they are logged beside the others; else None.
    """

    used: np.ndarray
    gradients: np.ndarray | None = None


def measure_similarities(updates: Tensor, gradients: Tensor | None, kind: SimilarityOf) -> Similarities:
    """Compute which clients pull the same way.

    Args:
        updates: of this round, or summed over rounds, (m, p).
        gradients: full gradients (m, p), where `kind` asks for them.
        kind: what the bipartition compares; with `both` updates, and gradients are logged beside them.
    """
    if gradients is None:
        return Similarities(cosine_matrix(updates))
    if kind == "gradients":
        return Similarities(cosine_matrix(gradients))
    return Similarities(cosine_matrix(updates), cosine_matrix(gradients))


class Gaps(NamedTuple):
    """Separation gaps (eq. 28) with the names of `ClusterMeasure`."""

    gap: float
    gap_round: float | None
    gap_gradients: float | None


def measure_gaps(found: Similarities, this_round: Tensor | None, truth: np.ndarray) -> Gaps:
    """Compute how well planted groups can be told apart.

    Args:
        found: the similarities.
        this_round: this round's updates (m, p), where the similarities are of a history; else None.
        truth: the planted group of each client (m,).
    """
    return Gaps(
        separation_gap(found.used, truth),
        None if this_round is None else separation_gap(cosine_matrix(this_round), truth),
        None if found.gradients is None else separation_gap(found.gradients, truth),
    )


def stack(updates: Mapping[int, Update], clients: Sequence[int], name: str, size: int | None = None) -> Tensor:
    """Return the first `size` numbers of a tensor of each client's message, (m, p)."""
    return torch.stack([updates[client].message.tensors[name][:size] for client in clients])
