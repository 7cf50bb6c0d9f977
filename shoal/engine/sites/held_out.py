"""The scores of models on the same held-out samples, and how sure the difference of two is; at a site, of two states.

Symbols in shapes: n samples, k neighbours, c clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.engine.messages.wire import EvaluateAnswer, StateRequest
from shoal.engine.store.codec import load_server
from shoal.engine.store.opened_run import OpenedClients, OpenedRun
from shoal.engine.workers.arithmetic import arithmetic
from shoal.methods.scores.assignment import assignment_of
from shoal.methods.scores.clustering import accuracy
from shoal.methods.scores.neighbours import nearest_samples, neighbour_information, reference_features
from shoal.methods.scores.resampling import bootstrap_interval

NEIGHBOURS = "neighbours"
MAX_SAMPLES = 5_000
"""Held-out samples that are used, a seeded draw: the cost of `neighbours` grows with their square."""
CONFIDENCE = 0.95
"""Share of the draws that the interval of a difference holds."""


@dataclass(frozen=True)
class Compare(StateRequest):
    """Score a server state and that of a model in use on the held-out samples of a site.

    Args:
        champion: the file of the other state.
    """

    champion: Path


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
        """The names of the scores; `acc` needs labels."""
        return (NEIGHBOURS,) if self.labels is None else (NEIGHBOURS, "acc")

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
        return bootstrap_interval(
            lambda rows: self.score(name, rows) - other.score(name, rows), len(self.cluster), CONFIDENCE, rng
        )


def held_out_rows(count: int) -> np.ndarray:
    """Return the rows of the held-out samples that are used, ascending int64: all, or always the same draw."""
    if count <= MAX_SAMPLES:
        return np.arange(count)
    return np.sort(Streams(0).numpy("held-out samples to judge on").choice(count, MAX_SAMPLES, replace=False))


def compare(opened: OpenedRun, request: Compare) -> EvaluateAnswer:
    """Score two states, which are recalibrated, on a site's samples; neighbours are those by pixels or columns.

    Returns:
        Sums: `samples`, and by name of a score that of the state, of the other one, and the length of the interval of
        their difference, float64 (3,). Nothing of fewer than two samples.
    """
    clients = OpenedClients(opened, request.round, request.clients)
    evaluation = opened.evaluation(request.round, final=True)
    data = evaluation.data
    rows = torch.from_numpy(held_out_rows(len(data.test_x)))
    if len(rows) < 2:
        return EvaluateAnswer()
    near = nearest_samples(reference_features(data.test_x[rows].cpu().numpy()))
    labels = None if data.test_y is None else data.test_y[rows].cpu().numpy()
    models = []
    with arithmetic(opened.precision):
        for path in (request.server, request.champion):
            assignment = assignment_of(opened.method, load_server(path, opened.device), clients, evaluation)
            cluster = assignment.cluster[len(evaluation.train) + rows].cpu().numpy()
            models.append(HeldOutClusters(cluster, assignment.clusters, near, labels))
    scores = {"samples": np.array([len(rows)])}
    for name in models[0].names:
        low, high = models[0].interval(name, models[1], opened.settings.seed)
        scores[name] = np.array([*(model.score(name) for model in models), high - low])
    return EvaluateAnswer(sums=scores)
