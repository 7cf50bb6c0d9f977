"""What clients say of their own samples under a model, and what their answers come to: sums of counts, means of scores.

A client sends counts and scores and no sample, so that a site can compute its part. A mean over clients is another
measure than the score of all samples together: neighbours at other sites do not count, and a site with one kind of
samples agrees with no cluster beyond chance.

Symbols in shapes: n samples, c clusters, k labels, d features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from shoal.core.streams import Streams
from shoal.methods.scores.neighbours import NEIGHBOURS, nearest_samples, neighbour_agreement
from shoal.methods.scores.probe import probe_of
from shoal.methods.scores.quality import silhouette
from shoal.methods.scores.representation import knn_accuracy

BY_CLIENT = "_by_client"
"""End of the name of a mean over clients: the score of all samples together has the name without it."""
MIN_SAMPLES = 2 * NEIGHBOURS + 1
"""Samples of a client below which it has no scores."""


@dataclass(frozen=True)
class ClientScores:
    """What a client says of its own samples.

    Attributes:
        table: counts by cluster and label, int64 (c, k + 1), as of `shoal.methods.scores.clustering.label_table`.
        scores: by name: `neighbour_agreement`, `silhouette`, `knn` and `probe`, as far as it has them, each with the
            number of samples on which it was measured.
    """

    table: np.ndarray
    scores: Mapping[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class MeanByClient:
    """The mean of a score over clients, weighted by the samples that each judged, and the number of clients."""

    value: float
    clients: int


def client_scores(
    table: np.ndarray,
    cluster: np.ndarray,
    labels: np.ndarray | None,
    features: np.ndarray,
    space: np.ndarray,
    streams: Streams,
) -> ClientScores:
    """Return what a client says of its samples.

    Args:
        table: see `ClientScores`.
        cluster: int (n,).
        labels: int (n,); None: features are not judged by a probe.
        features: of the model, (n, d).
        space: (n, e), in which neighbours are looked for.
        streams: draw the fifth of the samples that tests the probe and k-NN, which learn from the others.
    """
    count = len(cluster)
    if count < MIN_SAMPLES:
        return ClientScores(table)
    scores = {"neighbour_agreement": (neighbour_agreement(cluster, nearest_samples(space)), count)}
    apart = silhouette(features, cluster, streams.numpy("silhouette of a client"))
    if apart is not None:
        scores["silhouette"] = (apart, count)
    if labels is not None and len(np.unique(labels)) > 1:
        order = streams.numpy("probe of a client").permutation(count)
        held_out = order[: count // 5]
        learn = order[count // 5 :]
        probe = probe_of(features, learn, held_out, labels, streams.seed)
        if probe is not None:
            h, y = torch.from_numpy(features), torch.from_numpy(labels)
            scores["probe"] = (probe, len(held_out))
            scores["knn"] = (knn_accuracy(h[learn], y[learn], h[held_out], y[held_out]), len(held_out))
    return ClientScores(table, scores)


def means_by_client(clients: Sequence[ClientScores]) -> dict[str, MeanByClient]:
    """Return the mean of each score over the clients that have it, by name, with `BY_CLIENT` at its end."""
    means = {}
    for name in sorted({name for client in clients for name in client.scores}):
        scores, judged = zip(*(client.scores[name] for client in clients if name in client.scores), strict=True)
        means[name + BY_CLIENT] = MeanByClient(float(np.average(scores, weights=judged)), len(scores))
    return means
