"""Samples of all clients side by side, and what adds up over clients as a server would add it.

Nothing but moments, local centres, sums and counts is taken across clients.

Symbols in shapes: n samples of all clients, d features, k clusters, s starts side by side, m clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.federated_k_means import (
    Moments,
    Sums,
    moments,
    moved_centres,
    nearest,
    starting_centres,
    whitening,
)
from shoal.methods.clustering.k_means import kmeans

ROWS = 8192
"""Samples in one pass when distances are taken."""
MAX_SHIFT = 1e-9
"""K-means has converged when no coordinate of a centre of any start has moved by more than this."""
SAMPLES_PER_CENTRE = 4
"""A client's own K-means, from which the server starts, has at least this many samples of a half for each centre."""


class ClientSamples(NamedTuple):
    """Samples of all clients: x float64 (n, d); the client of each, int64 (n,), ascending; the number of clients, m."""

    x: Tensor
    client: Tensor
    clients: int

    def samples_of(self, client: int) -> Tensor:
        """Return one client's samples (n_i, d)."""
        return self.x[self.client == client]

    def some(self, rows: Tensor) -> ClientSamples:
        """Return the samples that are true in `rows`, bool (n,)."""
        return ClientSamples(self.x[rows], self.client[rows], self.clients)


@dataclass(frozen=True)
class Search:
    """Settings of the search for the number of clusters.

    Attributes:
        min_clusters, max_clusters: smallest and largest k that is tried.
        repeats: number of pairs of halves.
        starts: starts of K-means, of which the one with the lowest sum of squared distances counts.
        iterations: most iterations of K-means.
        least_points: a client leaves clusters of fewer samples out of its messages.
    """

    min_clusters: int = 2
    max_clusters: int = 15
    repeats: int = 5
    starts: int = 5
    iterations: int = 30
    least_points: int = 2


def project(features: ClientSamples, components: int, power: float, *, least_points: int) -> ClientSamples:
    """Return the samples to cluster: features projected on their principal components, by the clients' moments.

    Args:
        features: of all clients.
        components: number of components, at most as many as features.
        power: how far their variances are made equal, from 0 to 1.
        least_points: a client with fewer samples sends no moments.

    Raises:
        MethodError: see `whitening`.
    """
    total = moments(features.x[:0])
    for client in range(features.clients):
        samples = features.samples_of(client)
        if len(samples) >= least_points:
            total = Moments(*(a + b for a, b in zip(total, moments(samples), strict=True)))
    mean, projection = whitening(total, min(components, features.x.shape[1]), power)
    return features._replace(x=(features.x - mean) @ projection)


def local_starts(samples: ClientSamples, search: Search, seed: int, purpose: str) -> tuple[Tensor, Tensor]:
    """Return the centres that all clients find among their own samples, and how many samples each has."""
    centres, counts = zip(*local_centres(samples, search, seed, purpose), strict=True)
    return torch.cat(centres), torch.cat(counts)


def local_centres(samples: ClientSamples, search: Search, seed: int, purpose: str) -> list[tuple[Tensor, Tensor]]:
    """Return for each client the centres that it finds, and how many samples each has; none of too few samples."""
    by_client = []
    for client in range(samples.clients):
        x = samples.samples_of(client)
        if len(x) < search.least_points:
            by_client.append((x[:0], x.new_zeros(0)))
            continue
        wanted = max(1, min(search.max_clusters, len(x) // SAMPLES_PER_CENTRE))
        centres, sizes = kmeans(x.numpy(), wanted, Streams(seed, client=client).numpy(purpose), starts=1).counted()
        large = sizes >= search.least_points
        by_client.append((centres[large], sizes[large]))
    return by_client


def sums_over_clients(samples: ClientSamples, centres: Tensor, min_points: int) -> Sums:
    """Return the sums of all clients' parts of an iteration from centres (s, k, d).

    The same as adding up `federated_k_means.cluster_sums` of each client's samples, in one computation.
    """
    starts, clusters, width = centres.shape
    sums = centres.new_zeros(samples.clients * starts * clusters, width)
    counts = centres.new_zeros(samples.clients * starts * clusters)
    inertia = centres.new_zeros(starts)
    start = torch.arange(starts)[:, None]
    for x, client in zip(samples.x.split(ROWS), samples.client.split(ROWS), strict=True):
        cluster, squared = nearest(x, centres)
        place = ((client[None] * starts + start) * clusters + cluster).flatten()
        sums.index_add_(0, place, x.repeat(starts, 1))
        counts.index_add_(0, place, torch.ones_like(place, dtype=torch.float64))
        inertia += squared.sum(1)
    few = counts < min_points
    shape = (samples.clients, starts, clusters)
    sums = sums.masked_fill(few[:, None], 0).view(*shape, width).sum(0)
    return Sums(sums, counts.masked_fill(few, 0).view(shape).sum(0), inertia)


def federated_kmeans(
    samples: ClientSamples, local: Tensor, behind: Tensor, clusters: int, search: Search, rng: np.random.Generator
) -> Tensor:
    """Return the centres (k, d) of the best start, after K-means for which clients send sums and counts.

    Args:
        samples: of all clients.
        local: centres that these found (see `local_starts`), from which the server draws starts, (m, d).
        behind: samples of each of them, (m,).
        clusters: k.
        search: says how many starts, bounds the iterations, and the size of the clusters that clients send.
        rng: draws the starts.
    """
    centres = starting_centres(local, behind, clusters, search.starts, rng)
    inertia = centres.new_zeros(len(centres))
    for _ in range(search.iterations):
        sums, counts, inertia = sums_over_clients(samples, centres, search.least_points)
        before = centres
        centres = moved_centres(before, sums, counts)
        if bool((centres - before).abs().max() <= MAX_SHIFT):
            break
    return centres[int(inertia.argmin())]
