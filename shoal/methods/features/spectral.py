"""Landmarks: a spectral clustering of which only sums leave a client (Chen and Cai 2011).

A vector is described by its affinities to its nearest landmarks, which lie where the clients' vectors do. Two landmarks
are tied by the vectors that are near both: the sum of the products of affinities is a matrix that adds up over clients.
Its leading eigenvectors place landmarks that are tied, directly or through others, at one place, whatever the shape
of the group that they lie in. Each counts by a power of its eigenvalue, as in diffusion maps (Coifman and Lafon 2006):
the last ones, which may cut a large group as well as find a small one, count less.

Where landmarks happen to lie moves the clusters. So there are several sets of them, each with its own eigenvectors, and
K-means works in all of these spaces side by side.

Symbols in shapes: n samples, k dimensions, s sets, m landmarks in each, c clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.federated_k_means import row_blocks
from shoal.methods.clustering.k_means import kmeans

NEIGHBOURS = 5
"""A vector has affinities to so many landmarks, the nearest."""
LANDMARKS_PER_CLUSTER = 12
MAX_LANDMARKS = 1_000
SETS = 3
"""Sets of landmarks; fewer where there are many landmarks."""
MAX_PRODUCTS = MAX_LANDMARKS**2
"""Clients send a matrix of landmarks by landmarks for each set: 8 MB at most in all."""
SAMPLES_PER_CENTRE = 4
"""A client looks for one local centre among so many of its samples."""
PLACING_SAMPLES = 12
"""A client of fewer samples places no landmarks: its centres would be means over clusters."""
EVEN_TIES = 0.001
"""So large a share of the mean sum of a landmark's ties is spread evenly over all pairs. Without it a landmark of a few
samples that nothing else is near would take an eigenvector of its own, and two clusters would share one (Zhang and Rohe
2018, *Understanding Regularized Spectral Clustering via Graph Conductance*)."""
LAST_WEIGHT = 0.2
"""The last eigenvector counts so much, and the first 1."""
MAX_STEPS = 64.0
"""The power is at most this: where groups are far apart, all eigenvalues are near 1, and all eigenvectors count."""
SMALLEST = 1e-12


def landmark_count(wished: int, clusters: int) -> int:
    """Return how many landmarks are sought: enough for each cluster to have some of its own.

    >>> landmark_count(100, 4), landmark_count(100, 30), landmark_count(100, 500)
    (100, 360, 1000)
    """
    return min(max(wished, LANDMARKS_PER_CLUSTER * clusters), MAX_LANDMARKS)


def set_count(landmarks: int) -> int:
    """Return how many sets of so many landmarks there are.

    >>> set_count(120), set_count(600), set_count(1000)
    (3, 2, 1)
    """
    return min(SETS, max(1, MAX_PRODUCTS // landmarks**2))


def landmarks_among(local: Tensor, counts: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return at most `count` landmarks, float64 (m, k): the clients' local centres, or centres among these.

    Args:
        local: of all clients, (l, k).
        counts: samples of each, (l,).
        count: of landmarks.
        rng: draws the start of K-means.
    """
    if len(local) <= count:
        return local.double()
    weights = counts.double().cpu().numpy()
    clustering = kmeans(local.double().cpu().numpy(), count, rng, starts=1, weights=weights)
    return torch.from_numpy(clustering.centres).double()


def affinities(z: Tensor, landmarks: Tensor) -> Tensor:
    """Return the affinity of each vector to its nearest landmarks, float64 (n, m): rows sum to 1.

    They fall with the squared distance, in units of its mean over those landmarks.

    Args:
        z: (n, k), float64.
        landmarks: (m, k), float64.
    """
    landmarks = landmarks.to(z.device)
    squared = z.square().sum(1)[:, None] + landmarks.square().sum(1) - 2 * z @ landmarks.mT
    near = squared.clamp_min_(0).topk(min(NEIGHBOURS, len(landmarks)), largest=False)
    unit = near.values.mean(1, keepdim=True).clamp_min(SMALLEST)
    weights = (-near.values / unit).softmax(1)
    return torch.zeros_like(squared).scatter_(1, near.indices, weights)


def affinity_sums(z: Tensor | Iterable[Tensor], landmarks: Tensor, *, min_points: int) -> Tensor:
    """Return one client's sums of products of affinities, float64 (s, m, m).

    Args:
        z: (n, k), or blocks of it, float64.
        landmarks: (s, m, k), float64.
        min_points: a landmark that is near to fewer of the client's vectors gets no sums.
    """
    sets, count, _ = landmarks.shape
    products = torch.zeros(sets, count, count, dtype=torch.float64)
    behind = torch.zeros(sets, count, dtype=torch.float64)
    for part in row_blocks(z):
        for of_set, set_products, set_behind in zip(landmarks, products, behind, strict=True):
            weights = affinities(part, of_set)
            set_products += (weights.mT @ weights).cpu()
            set_behind += (weights > 0).double().sum(0).cpu()
    few = behind < min_points
    return products.masked_fill(few[:, :, None] | few[:, None], 0)


def spectral_projection(products: Tensor, clusters: int) -> Tensor:
    """Return the projection of affinities onto the leading eigenvectors, float64 (m, c).

    Args:
        products: sums of all clients' `affinity_sums` for one set, (m, m).
        clusters: c; fewer columns where there are fewer landmarks.
    """
    any_tie = (products.sum(1) > SMALLEST).double()
    products = products + EVEN_TIES * products.sum() * torch.outer(any_tie, any_tie) / len(products) ** 2
    degrees = products.sum(1)
    scale = torch.where(degrees > SMALLEST, degrees.clamp_min(SMALLEST).rsqrt(), 0.0)
    tied = scale[:, None] * products * scale
    values, vectors = torch.linalg.eigh((tied + tied.mT) / 2)
    values = values[-clusters:].clamp_min(SMALLEST)
    weights = values ** walk_steps(float(values[0]))
    projection: Tensor = scale[:, None] * vectors[:, -clusters:] * values.rsqrt() * weights
    return projection


def walk_steps(last: float) -> float:
    """Return the steps of a random walk among the landmarks after which the last eigenvector counts `LAST_WEIGHT`.

    Args:
        last: the last eigenvalue, above 0.

    >>> round(walk_steps(0.5), 2), walk_steps(1.0)
    (2.32, 64.0)
    """
    if last >= LAST_WEIGHT ** (1 / MAX_STEPS):
        return MAX_STEPS
    return math.log(LAST_WEIGHT) / math.log(last)


def in_spectral_space(z: Tensor, landmarks: Tensor, projections: Tensor) -> Tensor:
    """Return vectors by the groups of landmarks that they lie among, of unit length, float64 (n, s * c).

    Args:
        z: (n, k), float64.
        landmarks: (s, m, k), float64.
        projections: of each set, (s, m, c).
    """
    pairs = zip(landmarks, projections, strict=True)
    places = [F.normalize(affinities(z, of_set) @ projection.to(z.device), dim=1) for of_set, projection in pairs]
    return torch.cat(places, 1) / math.sqrt(len(places))
