"""A score that compares the clusterings of two models without labels: do samples that look alike share a cluster?

Models' own features are no common scale: they may be stretched, collapsed, or of different dimensions. Here the samples
themselves define which of them look alike, and a model only contributes its clusters. The score is the part of the
mutual information between the clusters of a sample and of its neighbour that comes from pairs within one cluster, as a
share of the maximum for that number of clusters: 1 for equally full clusters that contain all neighbours of their
samples, 0 by chance, and 0 where all samples are in one cluster. Mutual information of two views of a sample is the
objective of Ji, Henriques and Vedaldi 2019 (Invariant Information Clustering); here a neighbour is the second view.

The score ranks clusterings of the same samples with the same number of clusters. It cannot tell whether the groups are
the wanted ones: neighbours come from raw pixels or features, and a split that these do not show counts for nothing.

Symbols in shapes: n samples, d features, k neighbours, c clusters.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

NEIGHBOURS = 10
SIDE = 16
"""Images are averaged to at most this many pixels a side before they are compared: single pixels are mostly noise."""
CHUNK = 1024
ALIKE = 0.99
"""Share of old samples that defines from which distance on new ones are unlike them."""


def reference_features(x: np.ndarray) -> np.ndarray:
    """Return the features by which samples are compared, independent of any model, float32 (n, d).

    Args:
        x: images uint8 (n, channels, height, width), averaged to at most `SIDE` pixels a side; vectors float32
            (n, features), or windows float32 (n, channels, length), each value standardised over the samples.

    Raises:
        ValueError: fewer than two samples, or samples of another kind.
    """
    if len(x) < 2:
        raise ValueError(f"{len(x)} samples have no neighbours, expected at least 2")
    if x.ndim == 4:
        images = torch.from_numpy(np.array(x)).float() / 255
        side = tuple(min(SIDE, length) for length in images.shape[2:])
        return F.adaptive_avg_pool2d(images, side).flatten(1).numpy()  # type: ignore[arg-type]
    if x.ndim in (2, 3) and x.dtype.kind == "f":
        x = x.reshape(len(x), -1)
        spread = x.std(0, dtype=np.float64)
        result: np.ndarray = ((x - x.mean(0, dtype=np.float64)) / np.where(spread > 0, spread, 1)).astype(np.float32)
        return result
    raise ValueError(f"samples {x.dtype} {x.shape} are neither images nor vectors, so that they cannot be compared")


def nearest_samples(features: np.ndarray, k: int = NEIGHBOURS) -> np.ndarray:
    """Return the k nearest other samples of each by Euclidean distance, int64 (n, k); at most n - 1.

    Args:
        features: (n, d), n of at least 2.
        k: number of neighbours.
    """
    h = torch.from_numpy(np.ascontiguousarray(features)).double()
    k = min(k, len(h) - 1)
    neighbours = []
    for start in range(0, len(h), CHUNK):
        rows = torch.cdist(h[start : start + CHUNK], h)
        rows[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = torch.inf
        neighbours.append(rows.topk(k, largest=False).indices)
    return torch.cat(neighbours).numpy()


def neighbour_information(
    cluster: np.ndarray, neighbours: np.ndarray, clusters: int, rows: np.ndarray | None = None
) -> float:
    """Return how much neighbours share clusters beyond chance: sum_c P(c, c) log(P(c, c) / P(c)^2) / log c.

    P(c, c) is the share of pairs of neighbours that both lie in cluster c, P(c) that of single samples in pairs.

    Args:
        cluster: int (n,), values in 0 .. c - 1.
        neighbours: int (n, k), from `nearest_samples`.
        clusters: c, empty ones included; with one cluster the score is 0.
        rows: int (m,): only pairs that begin with these samples count, one that occurs twice counts twice; None: all.

    Returns:
        1 at most; a little below 0 where neighbours share a cluster more rarely than by chance.

    >>> pairs = np.array([[1], [0], [3], [2]])
    >>> [neighbour_information(np.array(c), pairs, 2) for c in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0])]
    [1.0, 0.0, 0.0]
    """
    if clusters < 2:
        return 0.0
    first = cluster
    if rows is not None:
        first = cluster[rows]
        neighbours = neighbours[rows]
    anchor = np.repeat(first, neighbours.shape[1])
    other = cluster[neighbours].ravel()
    both = np.bincount(anchor[anchor == other], minlength=clusters) / len(anchor)
    single = (np.bincount(anchor, minlength=clusters) + np.bincount(other, minlength=clusters)) / (2 * len(anchor))
    positive = both > 0
    return float((both[positive] * np.log(both[positive] / single[positive] ** 2)).sum() / math.log(clusters))


def neighbour_agreement(cluster: np.ndarray, near: np.ndarray) -> float:
    """Return how often neighbours share a cluster, beyond chance: (p - p0) / (1 - p0).

    p is the share of pairs of a sample and a neighbour in one cluster, and p0 what it would be with clusters of these
    sizes in random order. 0 where all samples are in one cluster.

    Args:
        cluster: int (n,), n at least 2.
        near: neighbours of each, int (n, k).

    >>> neighbour_agreement(np.array([0, 0, 1, 1]), np.array([[1], [0], [3], [2]]))
    1.0
    """
    sizes = np.bincount(cluster).astype(float)
    count = len(cluster)
    by_chance = float((sizes * (sizes - 1)).sum() / (count * (count - 1)))
    if by_chance >= 1:
        return 0.0
    same = float((cluster[near] == cluster[:, None]).mean())
    return (same - by_chance) / (1 - by_chance)


def unlike(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return which new samples are farther from every old one than old ones are from each other, bool (m,).

    The bound is the distance to the nearest other old sample, by reference features, that `ALIKE` of the old samples do
    not exceed.

    Args:
        old: samples (n, ...), n of at least 2.
        new: samples (m, ...) of the same kind.
    """
    features = torch.from_numpy(reference_features(np.concatenate([old, new]))).double()
    known = features[: len(old)]
    nearest = []
    for start in range(0, len(features), CHUNK):
        rows = torch.cdist(features[start : start + CHUNK], known)
        itself = torch.arange(start, min(start + CHUNK, len(known)))
        rows[itself - start, itself] = torch.inf
        nearest.append(rows.amin(1))
    distance = torch.cat(nearest).numpy()
    return np.asarray(distance[len(old) :] > np.quantile(distance[: len(old)], ALIKE, method="higher"))
