"""The number of clusters among landmarks: what one half of the clients' samples leads to.

Clients would send what they send in the rounds of a `FeatureClustering` with landmarks (see there and `spectral`), of
half of their samples, and twice the sums of the samples near each landmark. The landmarks and the sums of ties do not
depend on the number of clusters; each number takes as many eigenvectors.

Symbols in shapes: n samples of all clients, d features, k dimensions, s sets of m landmarks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import (
    ClientSamples,
    Search,
    federated_kmeans,
    local_starts,
    sums_over_clients,
)
from shoal.methods.clustering.cluster_number import Clustering, Half, check_enough
from shoal.methods.clustering.federated_k_means import moved_centres
from shoal.methods.features.spectral import (
    affinity_sums,
    in_spectral_space,
    landmark_count,
    landmarks_among,
    set_count,
    spectral_projection,
)

SETTLING_ROUNDS = 2
"""So many iterations of K-means move the landmarks of a half, with which the choice was calibrated."""


def landmark_half(wished: int, samples: ClientSamples, rows: Tensor, search: Search, seed: int, number: int) -> Half:
    """Place landmarks in a half of all clients' samples; clusters are sought in the space that follows from these.

    Args:
        wished: landmarks in a set, as settings have it.
        samples, rows, search, seed, number: see `cluster_number.CollectHalf`.
    """
    part = samples.some(rows)
    landmarks = placed_landmarks(wished, part, search, seed, number)
    products = torch.zeros(())
    for client in range(part.clients):
        sums = affinity_sums(part.samples_of(client), landmarks, min_points=search.least_points)
        products = products + sums

    def clustering(clusters: int) -> Clustering:
        projections = torch.stack([spectral_projection(of_set, clusters) for of_set in products])
        whole = samples._replace(x=in_spectral_space(samples.x, landmarks, projections))
        half = whole.some(rows)
        narrow = replace(search, max_clusters=clusters)
        local, counts = local_starts(half, narrow, seed, f"{clusters} clusters by landmarks, half {number}")
        check_enough(len(local), clusters, search)
        rng = Streams(seed, number).numpy(f"{clusters} clusters by landmarks")
        return Clustering(whole, federated_kmeans(half, local, counts, clusters, narrow, rng))

    return clustering


def placed_landmarks(wished: int, part: ClientSamples, search: Search, seed: int, number: int) -> Tensor:
    """Return sets of landmarks (s, m, k) among local centres of a half, moved towards the samples near them."""
    count = landmark_count(wished, search.max_clusters)
    wide = replace(search, max_clusters=count)
    names = [f"landmarks, half {number}, set {place}" for place in range(set_count(count))]
    sets = [local_starts(part, wide, seed, name) for name in names]
    fewest = min(len(local) for local, _ in sets)
    check_enough(fewest, search.max_clusters, search)
    rng = Streams(seed, number).numpy("landmarks of a half")
    landmarks = torch.stack([landmarks_among(local, counts, min(fewest, count), rng) for local, counts in sets])
    for _ in range(SETTLING_ROUNDS):
        sums, counts, _ = sums_over_clients(part, landmarks, search.least_points)
        landmarks = moved_centres(landmarks, sums, counts)
    return landmarks
