"""Samples of all clients side by side, and what adds up over clients as a server would add it.

Nothing but moments, local centres, sums and counts is taken across clients; `Traffic` counts what they would send.

Symbols in shapes: n samples of all clients, d features, k clusters, s starts side by side, m clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.federated_k_means import (
    Moments,
    moments,
    moved_centres,
    nearest,
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


class Traffic:
    """A counter of the bytes that are sent, 8 for each float64 number."""

    def __init__(self) -> None:
        self.up = 0
        self.down = 0

    def exchange(self, clients: int, *, up: int = 0, down: int = 0) -> None:
        """Count that every client receives `down` numbers and sends `up`."""
        self.up += 8 * up * clients
        self.down += 8 * down * clients


def project(
    features: ClientSamples, components: int, power: float, *, unit: bool, least_points: int, traffic: Traffic
) -> ClientSamples:
    """Return the samples to cluster: features projected on their principal components, by the clients' moments.

    Args:
        features: of all clients.
        components: number of components, at most as many as features.
        power: how far their variances are made equal, from 0 to 1.
        unit: whether to scale every sample to unit length.
        least_points: a client with fewer samples sends no moments.
        traffic: counts the messages.

    Raises:
        MethodError: see `whitening`.
    """
    width = features.x.shape[1]
    total = moments(features.x[:0])
    for client in range(features.clients):
        own = features.samples_of(client)
        if len(own) >= least_points:
            total = Moments(*(a + b for a, b in zip(total, moments(own), strict=True)))
    mean, projection = whitening(total, min(components, width), power)
    traffic.exchange(features.clients, up=1 + width + width * width, down=width + projection.numel())
    x = (features.x - mean) @ projection
    return features._replace(x=torch.nn.functional.normalize(x, dim=1) if unit else x)


def local_starts(samples: ClientSamples, search: Search, seed: int, purpose: str) -> tuple[Tensor, Tensor]:
    """Return the centres that all clients find among their own samples, and how many samples each has."""
    centres = [samples.x[:0]]
    counts = [samples.x.new_zeros(0)]
    for client in range(samples.clients):
        own = samples.samples_of(client)
        if len(own) < search.least_points:
            continue
        wanted = max(1, min(search.max_clusters, len(own) // SAMPLES_PER_CENTRE))
        rng = Streams(seed, client=client).numpy(purpose)
        found = kmeans(own.numpy(), wanted, rng, starts=1)
        sizes = torch.bincount(torch.from_numpy(found.cluster), minlength=wanted).double()
        large = sizes >= search.least_points
        centres.append(torch.from_numpy(found.centres).double()[large])
        counts.append(sizes[large])
    return torch.cat(centres), torch.cat(counts)


def sums_by_client(samples: ClientSamples, centres: Tensor, min_points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each client's part of an iteration: sums (m, s, k, d), counts (m, s, k), inertia (m, s), float64.

    The same as `federated_k_means.cluster_sums` of each client's samples, for all clients in one computation.
    """
    starts, clusters, width = centres.shape
    number = samples.clients
    sums = centres.new_zeros(number * starts * clusters, width)
    counts = centres.new_zeros(number * starts * clusters)
    inertia = centres.new_zeros(number * starts)
    start = torch.arange(starts)[:, None]
    for x, client in zip(samples.x.split(ROWS), samples.client.split(ROWS), strict=True):
        cluster, squared = nearest(x, centres)
        row = client[None] * starts + start  # (s, n)
        place = (row * clusters + cluster).flatten()
        sums.index_add_(0, place, x.repeat(starts, 1))
        counts.index_add_(0, place, torch.ones_like(place, dtype=torch.float64))
        inertia.index_add_(0, row.flatten(), squared.flatten())
    few = counts < min_points
    sums = sums.masked_fill(few[:, None], 0)
    counts = counts.masked_fill(few, 0)
    shape = (number, starts, clusters)
    return sums.view(*shape, width), counts.view(shape), inertia.view(number, starts)


def federated_kmeans(samples: ClientSamples, centres: Tensor, search: Search, traffic: Traffic) -> Tensor:
    """Return the centres (k, d) of the best start, after K-means for which clients send sums and counts.

    Args:
        samples: of all clients.
        centres: (s, k, d), to start from.
        search: bounds the iterations, and the size of the clusters that clients send.
        traffic: counts the messages.
    """
    inertia = centres.new_zeros(len(centres))
    for _ in range(search.iterations):
        sums, counts, squares = sums_by_client(samples, centres, search.least_points)
        traffic.exchange(samples.clients, up=sums[0].numel() + counts[0].numel() + len(centres), down=centres.numel())
        inertia = squares.sum(0)
        moved = moved_centres(centres, sums.sum(0), counts.sum(0))
        converged = bool((moved - centres).abs().max() <= MAX_SHIFT)
        centres = moved
        if converged:
            break
    return centres[int(inertia.argmin())]
