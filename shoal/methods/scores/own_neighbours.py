"""How far clusters are bound together, without labels and without pooling: the agreement of each client's neighbours.

Each client looks for the nearest neighbours of its samples among its own, and tells how often they share a cluster, and
how often they would by chance: two numbers, weighted by its samples. Their sums over clients give the agreement beyond
chance.

Symbols in shapes: n samples of all clients, d features.
"""

from __future__ import annotations

import numpy as np

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import ClientSamples, Search, federated_kmeans, local_starts
from shoal.methods.clustering.federated_k_means import nearest
from shoal.methods.scores.neighbours import nearest_samples

MIN_SAMPLES = 3
"""A client with fewer samples tells nothing."""


def own_agreement(samples: ClientSamples, cluster: np.ndarray) -> float:
    """Return how often a sample's nearest neighbours at its client share its cluster, beyond chance: 1 at best.

    Args:
        samples: of all clients.
        cluster: int (n,).
    """
    same = 0.0
    by_chance = 0.0
    count = 0
    for client in range(samples.clients):
        rows = (samples.client == client).numpy()
        clusters = cluster[rows]
        if len(clusters) < MIN_SAMPLES:
            continue
        near = nearest_samples(samples.x[rows].numpy())
        sizes = np.bincount(clusters).astype(float)
        same += float((clusters[near] == clusters[:, None]).mean()) * len(clusters)
        by_chance += float((sizes * (sizes - 1)).sum()) / (len(clusters) - 1)
        count += len(clusters)
    if by_chance >= count:
        return 0.0  # one cluster, or no client with enough samples
    return (same - by_chance) / (count - by_chance)


def space_agreement(samples: ClientSamples, clusters: int, seed: int) -> float:
    """Return the agreement of neighbours with the clusters of `space_clusters`."""
    return own_agreement(samples, space_clusters(samples, clusters, seed))


def dependence_on_clients(samples: ClientSamples, clusters: int, seed: int) -> float:
    """Return how much a sample's cluster tells of its client: adjusted mutual information, 0 by chance, 1 at most.

    It follows from each client's numbers of samples in the clusters of `space_clusters`.
    """
    from sklearn.metrics import adjusted_mutual_info_score  # here: it takes seconds to import

    return float(adjusted_mutual_info_score(samples.client.numpy(), space_clusters(samples, clusters, seed)))


def space_clusters(samples: ClientSamples, clusters: int, seed: int) -> np.ndarray:
    """Return the cluster that federated K-means gives each sample, int (n,).

    Args:
        samples: of all clients, in the space.
        clusters: how many are sought; fewer where the clients find fewer local centres.
        seed: of every draw.
    """
    search = Search(max_clusters=clusters)
    local, counts = local_starts(samples, search, seed, "agreement of a space")
    if len(local) < 2:
        return np.zeros(len(samples.x), dtype=int)
    rng = Streams(seed).numpy("agreement of a space, server")
    centres = federated_kmeans(samples, local, counts, min(clusters, len(local)), search, rng)
    cluster: np.ndarray = nearest(samples.x, centres[None])[0][0].numpy()
    return cluster
