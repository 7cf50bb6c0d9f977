"""One ruler for the clusterings of two models, without labels: do samples that look alike lie in one cluster?

A model's own features are no common scale: they may be stretched, collapsed, or of another dimension. Here what looks
alike is said by the samples themselves, and of a model only its clusters count. The score is that part of the mutual
information of the clusters of a sample and of a neighbour of it that comes from pairs within one cluster, as a share of
the most that so many clusters can have: 1 for equally full clusters that no pair of neighbours crosses, 0 by chance,
and 0 where all samples are in one cluster. Mutual information of two views of a sample is the objective of Ji,
Henriques and Vedaldi 2019 (Invariant Information Clustering); a neighbour takes the place of the second view here.

It ranks clusterings of the same samples with the same number of clusters. It cannot say that groups are those you want:
neighbours are of pixels or features as they are given, and a split that these do not show counts for nothing.

Symbols in shapes: n samples, d features, k neighbours, c clusters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

NEIGHBOURS = 10
SIDE = 16
"""Images are brought to at most so many pixels a side before they are compared: single pixels are mostly noise."""
CHUNK = 1024


def reference_features(x: np.ndarray) -> np.ndarray:
    """What samples are compared by, whatever any model makes of them, float32 (n, d).

    Args:
        x: images uint8 (n, channels, height, width), averaged to at most `SIDE` pixels a side; or vectors float32
            (n, features), each feature standardised over the samples.

    Raises:
        ValueError: fewer than two samples, or samples of another kind.
    """
    if len(x) < 2:
        raise ValueError(f"{len(x)} samples have no neighbours, expected at least 2")
    if x.ndim == 4:
        images = torch.from_numpy(np.array(x)).float() / 255
        side = tuple(min(SIDE, length) for length in images.shape[2:])
        return F.adaptive_avg_pool2d(images, side).flatten(1).numpy()  # type: ignore[arg-type]
    if x.ndim == 2 and x.dtype.kind == "f":
        spread = x.std(0, dtype=np.float64)
        result: np.ndarray = ((x - x.mean(0, dtype=np.float64)) / np.where(spread > 0, spread, 1)).astype(np.float32)
        return result
    raise ValueError(f"samples {x.dtype} {x.shape} are neither images nor vectors: nobody says which are alike")


def nearest_samples(features: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """The k nearest other samples of each by Euclidean distance, int64 (n, k); k is at most n - 1.

    Args:
        features: (n, d), n of at least 2.
        k: how many.
    """
    h = torch.from_numpy(np.ascontiguousarray(features)).double()
    k = min(k, len(h) - 1)
    found = []
    for start in range(0, len(h), CHUNK):
        rows = torch.cdist(h[start : start + CHUNK], h)
        rows[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = torch.inf
        found.append(rows.topk(k, largest=False).indices)
    return torch.cat(found).numpy()


def neighbour_information(cluster: np.ndarray, neighbours: np.ndarray, clusters: int) -> float:
    """How much neighbours share clusters, beyond chance: sum_c P(c, c) log(P(c, c) / P(c)^2) / log c.

    P(c, c) is the share of the pairs of neighbours that lie in cluster c both, P(c) that of the samples in pairs.

    Args:
        cluster: int (n,), values in 0 .. c - 1.
        neighbours: int (n, k), as `nearest_samples` finds them.
        clusters: c, empty ones counted; with one cluster the score is 0.

    Returns:
        1 at most; a little below 0 where neighbours share a cluster more rarely than by chance.

    >>> pairs = np.array([[1], [0], [3], [2]])
    >>> [neighbour_information(np.array(c), pairs, 2) for c in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0])]
    [1.0, 0.0, 0.0]
    """
    if clusters < 2:
        return 0.0
    own, other = np.repeat(cluster, neighbours.shape[1]), cluster[neighbours].ravel()
    both = np.bincount(own[own == other], minlength=clusters) / len(own)
    alone = (np.bincount(own, minlength=clusters) + np.bincount(other, minlength=clusters)) / (2 * len(own))
    there = both > 0
    return float((both[there] * np.log(both[there] / alone[there] ** 2)).sum() / math.log(clusters))


def unlike(old: np.ndarray, new: np.ndarray, share: float = 0.99) -> np.ndarray:
    """Which new samples are farther from every old one than old ones are from each other, bool (m,).

    Farther than `share` of the old samples are from the nearest other old one, by their reference features.

    Args:
        old: samples (n, ...), n of at least 2.
        new: samples (m, ...) of the same kind.
        share: of the old samples.
    """
    features = torch.from_numpy(reference_features(np.concatenate([old, new]))).double()
    known = features[: len(old)]
    nearest = []
    for start in range(0, len(features), CHUNK):
        rows = torch.cdist(features[start : start + CHUNK], known)
        own = torch.arange(start, min(start + CHUNK, len(known)))
        rows[own - start, own] = torch.inf
        nearest.append(rows.amin(1))
    distance = torch.cat(nearest).numpy()
    return np.asarray(distance[len(old) :] > np.quantile(distance[: len(old)], share, method="higher"))
