"""What the server measures of one cluster in one round: norms, similarities, the best bipartition, separation gaps."""

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
    """One cluster's round. None stands for what was not measured; it is not logged.

    Attributes:
        node: the cluster's number in the tree.
        mean_norm: norm of the cluster's mean update (eq. 32).
        max_norm: norm of its longest client update (eq. 33).
        median_norm: median norm of its clients' updates: one client with a wild update does not move it.
        outliers: clients whose norm exceeds the wanted multiple of the median; None without that rule.
        gamma: the median of the noise that its clients measured, where all of them did (`shoal.methods.cfl.gamma`).
        cross: the largest similarity across the best bipartition (eq. 25).
        gap: separation gap (eq. 28) of the similarities that are used, where groups are planted.
        gap_round: with a history, the gap of this round's updates alone.
        gap_gradients: with `similarity: both`, the gap of the full gradients.
        alpha: the similarities that are used, float64 (m, m); not logged.
        groups: their best bipartition, as rows of `alpha`; not logged.
    """

    node: int
    mean_norm: float
    max_norm: float
    median_norm: float
    outliers: tuple[int, ...] | None = None
    gamma: float | None = None
    cross: float | None = None
    gap: float | None = None
    gap_round: float | None = None
    gap_gradients: float | None = None
    alpha: np.ndarray | None = None
    groups: Bipartition | None = None

    @classmethod
    def from_facts(cls, entry: Mapping[str, Any]) -> ClusterMeasure:
        """The measure of a log entry."""
        plain: dict[str, Any] = {key: tuple(v) if key == "outliers" else v for key, v in entry.items()}
        return cls(**plain)

    def entry(self) -> dict[str, Any]:
        """The measure as JSON values, for the server's log."""
        logged = {k: list(v) if k == "outliers" and v is not None else v for k, v in vars(self).items()}
        return {k: v for k, v in logged.items() if v is not None and k not in ("alpha", "groups")}


def measure_norms(
    node: int, clients: Sequence[int], rows: Tensor, mean: Tensor, outliers: float = 0.0
) -> ClusterMeasure:
    """Norms of a cluster's updates in this round.

    Args:
        node: the cluster's number.
        clients: whose updates they are.
        rows: the updates (m, p).
        mean: the cluster's mean update (p,).
        outliers: a client is one where its norm exceeds this multiple of the median; 0: no such rule.
    """
    norms = rows.double().norm(dim=1)
    median = float(norms.median())
    far = None
    if outliers:
        far = tuple(c for c, cut in zip(clients, (norms > outliers * median).tolist(), strict=True) if cut)
    return ClusterMeasure(node, float(mean.double().norm()), float(norms.max()), median, far)


@dataclass(frozen=True)
class Similarities:
    """Cosine similarities (eq. 44) of a cluster's clients, each float64 (m, m).

    Attributes:
        used: those that the bipartition goes by.
        gradients: of the full gradients, where they are logged beside those used; else None.
    """

    used: np.ndarray
    gradients: np.ndarray | None = None


def measure_similarities(updates: Tensor, gradients: Tensor | None, kind: SimilarityOf) -> Similarities:
    """Which clients pull the same way.

    Args:
        updates: of this round, or summed over rounds, (m, p).
        gradients: full gradients (m, p), where `kind` wants them.
        kind: what the similarities that are used are of; `both`: of updates, with those of gradients beside them.
    """
    of_gradients = None if gradients is None else cosine_matrix(gradients)
    if kind == "gradients" and of_gradients is not None:
        return Similarities(of_gradients)
    return Similarities(cosine_matrix(updates), of_gradients)


class Gaps(NamedTuple):
    """Separation gaps (eq. 28), named as in `ClusterMeasure`."""

    gap: float
    gap_round: float | None
    gap_gradients: float | None


def measure_gaps(found: Similarities, this_round: Tensor | None, truth: np.ndarray) -> Gaps:
    """How well planted groups can be told apart.

    Args:
        found: the similarities.
        this_round: this round's updates (m, p), where those used are of a history; else None.
        truth: the planted group of each client (m,).
    """
    return Gaps(
        separation_gap(found.used, truth),
        None if this_round is None else separation_gap(cosine_matrix(this_round), truth),
        None if found.gradients is None else separation_gap(found.gradients, truth),
    )


def stack(updates: Mapping[int, Update], clients: Sequence[int], name: str, size: int | None = None) -> Tensor:
    """A tensor of each client's message, its first `size` numbers: (m, p)."""
    return torch.stack([updates[client].message.tensors[name][:size] for client in clients])
