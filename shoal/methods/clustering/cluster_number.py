"""The number of clusters, found without labels and without pooling samples: stability and separation over k.

For every number of clusters k, federated K-means runs on each of two halves that every client draws of its own samples,
and again for several such draws. Both sets of centres then assign all samples to clusters, and clients count how many
of their samples are in each pair of clusters. The sum of these tables over clients gives the adjusted Rand index
(Hubert and Arabie 1985) of the two clusterings exactly: the stability of k (Ben-Hur et al. 2002, Lange et al. 2004).
Clients also send the sum of their samples' simplified silhouettes (Hruschka et al. 2006), which need centres alone.

A client sends moments of its features, local centres, sums and counts of clusters, tables of counts and sums of
silhouettes. Here all of it is computed for each client apart, then added up, as the server would.

Symbols in shapes: n samples of all clients, d features, k clusters, s starts side by side, m clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.federated_k_means import (
    Moments,
    moments,
    moved_centres,
    nearest,
    starting_centres,
    whitening,
)
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.context import MethodError

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


@dataclass(frozen=True)
class Search:
    """Settings of the search for the number of clusters.

    Attributes:
        min_clusters, max_clusters: smallest and largest k that is tried.
        repeats: number of pairs of halves.
        starts: starts of K-means, of which the one with the lowest sum of squared distances counts.
        iterations: most iterations of K-means.
        least_points: a client leaves clusters of fewer samples out of its messages.
        tie: stabilities that differ by at most this count as equal.
    """

    min_clusters: int = 2
    max_clusters: int = 15
    repeats: int = 5
    starts: int = 5
    iterations: int = 30
    least_points: int = 2
    tie: float = 0.02


@dataclass(frozen=True)
class Tried:
    """The criteria of one number of clusters: means over pairs of halves, and their standard deviations.

    Attributes:
        clusters: k.
        stability: adjusted Rand index of the clusterings found in two halves, over all samples.
        silhouette: simplified silhouette over all samples.
        stability_std, silhouette_std: over the pairs.
    """

    clusters: int
    stability: float
    silhouette: float
    stability_std: float
    silhouette_std: float


@dataclass(frozen=True)
class ClusterNumber:
    """The number of clusters that was found.

    Attributes:
        clusters: k.
        rule: why this k, in a sentence.
        tried: every k with its criteria.
        bytes_up, bytes_down: bytes that clients and server would have sent each other in the search.
    """

    clusters: int
    rule: str
    tried: tuple[Tried, ...]
    bytes_up: int
    bytes_down: int


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


def draw_half(samples: ClientSamples, seed: int, repeat: int) -> Tensor:
    """Draw half of each client's samples; return which samples are in it, bool (n,)."""
    first = torch.zeros(len(samples.x), dtype=torch.bool)
    for client in range(samples.clients):
        rows = torch.nonzero(samples.client == client).squeeze(1).numpy()
        rng = Streams(seed, repeat, client).numpy("half for the number of clusters")
        first[rng.permutation(rows)[: -(-len(rows) // 2)]] = True
    return first


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


def simplified_silhouette(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each sample, int64 (n,), and its simplified silhouette, float64 (n,).

    It is (b - a) / b with a the distance to the nearest centre and b that to the second nearest: 1 on a centre, 0 half
    way between two, and 0 where both distances are 0.

    Args:
        x: (n, d).
        centres: (k, d), at least two.
    """
    two = torch.cdist(x, centres).topk(2, dim=1, largest=False)
    a, b = two.values.unbind(1)
    return two.indices[:, 0], torch.where(b > 0, (b - a) / b.clamp_min(1e-300), 0.0)


def rand_index(table: Tensor) -> float:
    """Return the adjusted Rand index of two clusterings, from the number of samples in each pair of clusters (k, k).

    >>> rand_index(torch.tensor([[3.0, 0.0], [0.0, 2.0]])), rand_index(torch.tensor([[2.0, 2.0], [2.0, 2.0]])) < 0
    (1.0, True)
    """

    def pairs(counts: Tensor) -> float:
        return float((counts * (counts - 1) / 2).sum())

    both = pairs(table)
    rows = pairs(table.sum(1))
    columns = pairs(table.sum(0))
    expected = rows * columns / max(pairs(table.sum()), 1.0)
    largest = (rows + columns) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def compare_centres(samples: ClientSamples, first: Tensor, second: Tensor, traffic: Traffic) -> tuple[float, float]:
    """Return stability and silhouette of two sets of centres (k, d), from counts and sums that clients send."""
    clusters = len(first)
    table = samples.x.new_zeros(samples.clients, clusters * clusters)
    silhouettes = samples.x.new_zeros(samples.clients, 2)
    for x, client in zip(samples.x.split(ROWS), samples.client.split(ROWS), strict=True):
        a, score_a = simplified_silhouette(x, first)
        b, score_b = simplified_silhouette(x, second)
        table.view(-1).index_add_(0, client * clusters**2 + a * clusters + b, torch.ones_like(score_a))
        silhouettes.index_add_(0, client, torch.stack([score_a, score_b], 1))
    traffic.exchange(samples.clients, up=clusters * clusters + 2, down=first.numel() + second.numel())
    stability = rand_index(table.sum(0).view(clusters, clusters))
    return stability, float(silhouettes.sum() / (2 * table.sum()))


def find_cluster_number(
    samples: ClientSamples,
    search: Search,
    seed: int,
    traffic: Traffic,
    watch: Callable[[int, int], None] | None = None,
) -> ClusterNumber:
    """Find the number of clusters of samples that stay with their clients.

    Args:
        samples: of all clients (see `project`).
        search: the numbers to try, and how often.
        seed: seed of every draw.
        traffic: counts the messages; it may have counted earlier ones.
        watch: called with the number of K-means done and their total.

    Raises:
        MethodError: too few samples for the largest number.
    """
    stabilities: dict[int, list[float]] = {k: [] for k in range(search.min_clusters, search.max_clusters + 1)}
    silhouettes: dict[int, list[float]] = {k: [] for k in stabilities}
    total = search.repeats * len(stabilities)
    done = 0
    for repeat in range(search.repeats):
        first_half = draw_half(samples, seed, repeat)
        halves = [
            _Half.collect(samples, rows, search, seed, 2 * repeat + number, traffic)
            for number, rows in enumerate((first_half, ~first_half))
        ]
        for k in stabilities:
            first, second = (half.centres(k, search, seed, repeat, traffic) for half in halves)
            stability, silhouette = compare_centres(samples, first, second, traffic)
            stabilities[k].append(stability)
            silhouettes[k].append(silhouette)
            done += 1
            if watch is not None:
                watch(done, total)
    tried = tuple(
        Tried(
            k,
            float(np.mean(stabilities[k])),
            float(np.mean(silhouettes[k])),
            float(np.std(stabilities[k])),
            float(np.std(silhouettes[k])),
        )
        for k in stabilities
    )
    clusters, rule = choose_number(tried, search.tie)
    return ClusterNumber(clusters, rule, tried, traffic.up, traffic.down)


class _Half(NamedTuple):
    """One half of all clients' samples, its number over all repeats, and the local centres in it with their sizes."""

    samples: ClientSamples
    number: int
    local: Tensor
    counts: Tensor

    @classmethod
    def collect(
        cls, samples: ClientSamples, rows: Tensor, search: Search, seed: int, number: int, traffic: Traffic
    ) -> _Half:
        """Let the clients send their local centres in a half of their samples, which is true in `rows` (n,).

        Raises:
            MethodError: too few local centres for the largest number of clusters.
        """
        part = ClientSamples(samples.x[rows], samples.client[rows], samples.clients)
        local, counts = local_starts(part, search, seed, f"number of clusters, half {number}")
        traffic.exchange(1, up=local.numel() + counts.numel())
        if len(local) < search.max_clusters:
            raise MethodError(
                f"half of the clients' samples gave {len(local)} local centres, which is too few to try "
                f"{search.max_clusters} clusters: set choose.max_clusters to {max(2, len(local))} or less, or give "
                "model.clusters a number"
            )
        return cls(part, number, local, counts)

    def centres(self, clusters: int, search: Search, seed: int, repeat: int, traffic: Traffic) -> Tensor:
        """Return the centres (k, d) that federated K-means finds in this half."""
        rng = Streams(seed, repeat).numpy(f"number of clusters, {clusters}, half {self.number % 2}")
        start = starting_centres(self.local, self.counts, clusters, search.starts, rng)
        return federated_kmeans(self.samples, start, search, traffic)


def choose_number(tried: Sequence[Tried], tie: float) -> tuple[int, str]:
    """Return the most stable number, the greatest of those about as stable, and the reason in a sentence.

    Clusters that lie far apart are also stable where fewer are sought, so that the nearest of them are joined: of all
    these numbers the greatest says most. The silhouette does not decide: it rises with the number where groups touch
    each other, as those of learnt features do (docs/number-of-clusters.md has both, measured).

    Args:
        tried: every number with its criteria.
        tie: a stability that is lower than the largest by at most this counts as equal.

    >>> flat = dict(silhouette=0.5, stability_std=0.0, silhouette_std=0.0)
    >>> choose_number([Tried(2, 1.0, **flat), Tried(3, 0.99, **flat), Tried(4, 0.8, **flat)], 0.02)[0]
    3
    """
    best = max(each.stability for each in tried)
    tied = [each for each in tried if each.stability >= best - tie]
    found = max(tied, key=lambda each: each.clusters)
    others = ", ".join(str(each.clusters) for each in tied if each is not found)
    loudest = max(tried, key=lambda each: each.silhouette)
    rule = f"most stable over halves of the clients' samples (adjusted Rand index {found.stability:.3f})"
    if others:
        rule += f", about as stable as {others} clusters, and the greatest of these numbers"
    if loudest.clusters != found.clusters:
        rule += f"; the silhouette is largest at {loudest.clusters} ({loudest.silhouette:.3f})"
    return found.clusters, rule
