"""The scores of models on the same held-out samples, and how sure the difference of two is.

Symbols in shapes: n samples, k neighbours, c clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.core.streams import Streams
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.neighbours import neighbour_information
from shoal.methods.scores.resampling import bootstrap_interval

NEIGHBOURS = "neighbours"
NAMES = (NEIGHBOURS, "acc")
"""The scores; `acc` needs labels."""
MAX_SAMPLES = 5_000
"""Held-out samples that are used, a seeded draw: the cost of `neighbours` grows with their square."""
CONFIDENCE = 0.95
"""Share of the draws that the interval of a difference holds."""
OF_CHAMPION = "_of_champion"
INTERVAL = "_interval"
"""Ends of the names of the other model's score, and of the length of the interval of the difference."""


@dataclass(frozen=True)
class HeldOutClusters:
    """The clusters of held-out samples under a model.

    Args:
        cluster: int (n,).
        clusters: c, empty ones included.
        neighbours: the samples that look most alike to each, int64 (n, k).
        labels: int64 (n,); None without labels.
    """

    cluster: np.ndarray
    clusters: int
    neighbours: np.ndarray
    labels: np.ndarray | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return NAMES[:1] if self.labels is None else NAMES

    def score(self, name: str, rows: np.ndarray | None = None) -> float:
        """Return a score on the samples in some rows, int64 (m,); None: on all."""
        if name == NEIGHBOURS:
            return neighbour_information(self.cluster, self.neighbours, self.clusters, rows)
        assert self.labels is not None, "only labels give an accuracy"
        chosen = slice(None) if rows is None else rows
        return accuracy(self.labels[chosen], self.cluster[chosen])

    def interval(self, name: str, other: HeldOutClusters, seed: int) -> tuple[float, float]:
        """Return the interval of the difference of a score to that of another model, by paired draws of the samples."""
        rng = Streams(seed).numpy("held-out samples of a comparison")
        samples = len(self.cluster)
        return bootstrap_interval(
            lambda rows: self.score(name, rows) - other.score(name, rows), samples, CONFIDENCE, rng
        )

    def beside(self, other: HeldOutClusters, seed: int) -> dict[str, float]:
        """Return the scores of this model and of another by name, with the length of the interval of each difference.

        >>> pairs = np.array([[1], [0], [3], [2]])
        >>> model = HeldOutClusters(np.array([0, 0, 1, 1]), 2, pairs, None)
        >>> model.beside(model, 0)
        {'neighbours': 1.0, 'neighbours_of_champion': 1.0, 'neighbours_interval': 0.0}
        """
        numbers = {}
        for name in self.names:
            low, high = self.interval(name, other, seed)
            numbers |= {name: self.score(name), name + OF_CHAMPION: other.score(name), name + INTERVAL: high - low}
        return numbers


def held_out_rows(count: int) -> np.ndarray:
    """Return the rows of the held-out samples that are used, ascending int64: all, or always the same draw."""
    if count <= MAX_SAMPLES:
        return np.arange(count)
    return np.sort(Streams(0).numpy("held-out samples to judge on").choice(count, MAX_SAMPLES, replace=False))
