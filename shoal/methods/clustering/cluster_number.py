"""How many clusters there are, found without labels and without pooling anything: stability and separation over k.

For every number of clusters k federated K-means is done twice over, on two halves that every client draws of its own
samples, and again for several such draws. Both sets of centres then give all samples a cluster, and clients count how
many of theirs are in which pair of clusters. These tables add up over clients, and the adjusted Rand index (Hubert and
Arabie 1985) of the two clusterings follows from their sum, exactly: the stability of k (Ben-Hur et al. 2002, Lange et
al. 2004). Of each sample a client takes the simplified silhouette (Hruschka et al. 2006), by centres alone, and sends
the sum.

What leaves a client: moments of its features, local centres, sums and counts of clusters, tables of counts, sums of
silhouettes. All of it is kept apart by client until it is added up, as the server would.

Symbols in shapes: n samples of all clients, d features, k clusters, s starts that go on side by side, m clients.
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
STILL = 1e-9
"""A K-means is done when no centre of any start has moved by more than this."""
A_CENTRE = 4
"""A client's own K-means, from which the server starts, has a centre for at least so many samples of a half."""


class Held(NamedTuple):
    """Samples and who holds them: x float64 (n, d); client int64 (n,), in ascending order; how many clients, m."""

    x: Tensor
    client: Tensor
    clients: int

    def samples_of(self, client: int) -> Tensor:
        """One client's samples (n_i, d)."""
        return self.x[self.client == client]


@dataclass(frozen=True)
class Search:
    """How the number is looked for.

    Attributes:
        least, most: of k, both tried.
        repeats: pairs of halves.
        starts: of K-means, of which the one with the least sum of squared distances counts.
        iterations: of K-means, at most.
        least_points: a client's cluster of fewer samples is left out of what it sends.
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
    """What came of one number of clusters: means over pairs of halves, and their standard deviations.

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
        rule: why this one, in a sentence.
        tried: every k with its criteria.
        bytes_up, bytes_down: what clients and server would have sent each other for it.
    """

    clusters: int
    rule: str
    tried: tuple[Tried, ...]
    bytes_up: int
    bytes_down: int


class Traffic:
    """Counts what is sent: float64 numbers of 8 bytes each."""

    def __init__(self) -> None:
        self.up = self.down = 0

    def exchange(self, clients: int, *, up: int = 0, down: int = 0) -> None:
        """Every client gets `down` numbers and sends `up`."""
        self.up, self.down = self.up + 8 * up * clients, self.down + 8 * down * clients


def projected(
    features: Held, components: int, power: float, *, unit: bool, least_points: int, traffic: Traffic
) -> Held:
    """What is clustered: features among their principal components, by the sum of the clients' moments.

    Args:
        features: of all clients.
        components: how many, at most as many as features.
        power: how far their variances are made equal, from 0 to 1.
        unit: scale every sample to unit length.
        least_points: a client with fewer samples does not say how its features vary.
        traffic: counts.

    Raises:
        MethodError: as `whitening`.
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


def half(held: Held, seed: int, repeat: int) -> Tensor:
    """Whether each sample is in the first half of its client's, bool (n,): drawn by each client for itself."""
    first = torch.zeros(len(held.x), dtype=torch.bool)
    for client in range(held.clients):
        rows = torch.nonzero(held.client == client).squeeze(1).numpy()
        rng = Streams(seed, repeat, client).numpy("half for the number of clusters")
        first[rng.permutation(rows)[: -(-len(rows) // 2)]] = True
    return first


def local_starts(held: Held, search: Search, seed: int, purpose: str) -> tuple[Tensor, Tensor]:
    """Centres that clients find among their own samples, and how many samples are behind each; of all clients."""
    centres, counts = [held.x[:0]], [held.x.new_zeros(0)]
    for client in range(held.clients):
        own = held.samples_of(client)
        if len(own) < search.least_points:
            continue
        wanted = max(1, min(search.max_clusters, len(own) // A_CENTRE))
        rng = Streams(seed, client=client).numpy(purpose)
        found = kmeans(own.numpy(), wanted, rng, starts=1)
        sizes = torch.bincount(torch.from_numpy(found.cluster), minlength=wanted).double()
        told = sizes >= search.least_points
        centres.append(torch.from_numpy(found.centres).double()[told])
        counts.append(sizes[told])
    return torch.cat(centres), torch.cat(counts)


def sums_by_client(held: Held, centres: Tensor, least: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each client sends of one iteration: sums (m, s, k, d), counts (m, s, k), inertia (m, s), float64.

    As `federated_k_means.cluster_sums` of each client's samples, for all clients in one computation.
    """
    (starts, clusters, width), number = centres.shape, held.clients
    sums = centres.new_zeros(number * starts * clusters, width)
    counts = centres.new_zeros(number * starts * clusters)
    inertia = centres.new_zeros(number * starts)
    start = torch.arange(starts)[:, None]
    for x, client in zip(held.x.split(ROWS), held.client.split(ROWS), strict=True):
        cluster, squared = nearest(x, centres)
        row = client[None] * starts + start  # (s, n)
        place = (row * clusters + cluster).flatten()
        sums.index_add_(0, place, x.repeat(starts, 1))
        counts.index_add_(0, place, torch.ones_like(place, dtype=torch.float64))
        inertia.index_add_(0, row.flatten(), squared.flatten())
    few = counts < least
    sums, counts = sums.masked_fill(few[:, None], 0), counts.masked_fill(few, 0)
    shape = number, starts, clusters
    return sums.view(*shape, width), counts.view(shape), inertia.view(number, starts)


def federated_kmeans(held: Held, centres: Tensor, search: Search, traffic: Traffic) -> Tensor:
    """The centres (k, d) of the best start, after K-means of which clients send sums and counts.

    Args:
        held: the samples.
        centres: (s, k, d), to start from.
        search: how long, and what is left out.
        traffic: counts.
    """
    inertia = centres.new_zeros(len(centres))
    for _ in range(search.iterations):
        sums, counts, squares = sums_by_client(held, centres, search.least_points)
        traffic.exchange(held.clients, up=sums[0].numel() + counts[0].numel() + len(centres), down=centres.numel())
        inertia = squares.sum(0)
        moved = moved_centres(centres, sums.sum(0), counts.sum(0))
        still = bool((moved - centres).abs().max() <= STILL)
        centres = moved
        if still:
            break
    return centres[int(inertia.argmin())]


def simplified_silhouette(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each sample, int64 (n,), and its simplified silhouette, float64 (n,).

    (b - a) / b with a the distance to the nearest centre and b that to the second nearest: 1 on a centre, 0 half way
    between two. Where both are 0 it is 0.

    Args:
        x: (n, d).
        centres: (k, d), at least two.
    """
    two = torch.cdist(x, centres).topk(2, dim=1, largest=False)
    a, b = two.values.unbind(1)
    return two.indices[:, 0], torch.where(b > 0, (b - a) / b.clamp_min(1e-300), 0.0)


def rand_index(table: Tensor) -> float:
    """The adjusted Rand index of two clusterings from the table of how many samples are in each pair, (k, k).

    >>> rand_index(torch.tensor([[3.0, 0.0], [0.0, 2.0]])), rand_index(torch.tensor([[2.0, 2.0], [2.0, 2.0]])) < 0
    (1.0, True)
    """

    def pairs(counts: Tensor) -> float:
        return float((counts * (counts - 1) / 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = rows * columns / max(pairs(table.sum()), 1.0)
    most = (rows + columns) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def judged(held: Held, first: Tensor, second: Tensor, traffic: Traffic) -> tuple[float, float]:
    """Stability and silhouette of two sets of centres (k, d), from what clients count and add up."""
    clusters = len(first)
    table, silhouettes = held.x.new_zeros(held.clients, clusters * clusters), held.x.new_zeros(held.clients, 2)
    for x, client in zip(held.x.split(ROWS), held.client.split(ROWS), strict=True):
        (a, score_a), (b, score_b) = (simplified_silhouette(x, centres) for centres in (first, second))
        table.view(-1).index_add_(0, client * clusters**2 + a * clusters + b, torch.ones_like(score_a))
        silhouettes.index_add_(0, client, torch.stack([score_a, score_b], 1))
    traffic.exchange(held.clients, up=clusters * clusters + 2, down=first.numel() + second.numel())
    samples = table.sum()
    stability = rand_index(table.sum(0).view(clusters, clusters))
    return stability, float(silhouettes.sum() / (2 * samples))


def find_cluster_number(
    held: Held, search: Search, seed: int, traffic: Traffic, watch: Callable[[int, int], None] | None = None
) -> ClusterNumber:
    """The number of clusters of samples that stay with their clients.

    Args:
        held: what is clustered, of all clients (see `projected`).
        search: which numbers, how often.
        seed: every draw follows from it.
        traffic: counts; may have counted what came before.
        watch: told how many of all K-means are done.

    Raises:
        MethodError: too few samples for the largest number.
    """
    stabilities: dict[int, list[float]] = {k: [] for k in range(search.min_clusters, search.max_clusters + 1)}
    silhouettes: dict[int, list[float]] = {k: [] for k in stabilities}
    done, total = 0, search.repeats * len(stabilities)
    for repeat in range(search.repeats):
        first = half(held, seed, repeat)
        halves = [Held(held.x[rows], held.client[rows], held.clients) for rows in (first, ~first)]
        starts = []
        for number, part in enumerate(halves):
            local, counts = local_starts(part, search, seed, f"number of clusters, half {2 * repeat + number}")
            traffic.exchange(1, up=local.numel() + counts.numel())
            if len(local) < search.max_clusters:
                raise MethodError(
                    f"half of the clients' samples gave {len(local)} local centres, which is too few to try "
                    f"{search.max_clusters} clusters: set choose.max_clusters to {max(2, len(local))} or less, or give "
                    "model.clusters a number"
                )
            starts.append((local, counts))
        for k in stabilities:
            found = []
            for number, (part, (local, counts)) in enumerate(zip(halves, starts, strict=True)):
                rng = Streams(seed, repeat).numpy(f"number of clusters, {k}, half {number}")
                centres = starting_centres(local, counts, k, search.starts, rng)
                found.append(federated_kmeans(part, centres, search, traffic))
            stability, silhouette = judged(held, found[0], found[1], traffic)
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
    clusters, rule = chosen(tried, search.tie)
    return ClusterNumber(clusters, rule, tried, traffic.up, traffic.down)


def chosen(tried: Sequence[Tried], tie: float) -> tuple[int, str]:
    """The number that is most stable; of several that are about as stable the greatest.

    Clusters far apart are found again whole also where fewer are sought and the nearest of them are joined: all of
    these are stable, and the greatest number says most. The silhouette does not decide: it rises with the number where
    groups touch each other, as those of learnt features do (docs/number-of-clusters.md has both, measured).

    Args:
        tried: every number with its criteria.
        tie: a stability that is lower than the largest by at most this counts as equal.

    >>> flat = dict(silhouette=0.5, stability_std=0.0, silhouette_std=0.0)
    >>> chosen([Tried(2, 1.0, **flat), Tried(3, 0.99, **flat), Tried(4, 0.8, **flat)], 0.02)[0]
    3
    """
    best = max(each.stability for each in tried)
    tied = [each for each in tried if each.stability >= best - tie]
    found = max(tied, key=lambda each: each.clusters)
    others = ", ".join(str(each.clusters) for each in tied if each is not found)
    loudest = max(tried, key=lambda each: each.silhouette)
    rule = f"most stable over halves of the clients' samples (adjusted Rand index {found.stability:.3f})"
    if others:
        rule += f", and the greatest of those about as stable ({others})"
    if loudest.clusters != found.clusters:
        rule += f"; the silhouette is largest at {loudest.clusters} ({loudest.silhouette:.3f})"
    return found.clusters, rule
