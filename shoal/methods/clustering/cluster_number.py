"""The number of clusters, found without labels and without pooling samples: stability and separation over k.

For every number of clusters k, federated K-means runs on each of two halves that every client draws of its own samples,
and again for several such draws. Both sets of centres then assign all samples to clusters, and clients count how many
of their samples are in each pair of clusters. The sum of these tables over clients gives the adjusted Rand index
(Hubert and Arabie 1985) of the two clusterings exactly: the stability of k (Ben-Hur et al. 2002, Lange et al. 2004).
Clients also send the sum of their samples' simplified silhouettes (Hruschka et al. 2006), which need centres alone.

A client sends moments of its features, local centres, sums and counts of clusters, tables of counts and sums of
silhouettes. The server sees their sums alone: counts and silhouettes are added over all samples here.

Symbols in shapes: n samples of all clients, d features, k clusters, s starts side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.agreement import counts, table_ari
from shoal.methods.clustering.client_samples import ClientSamples, Search, federated_kmeans, local_starts
from shoal.methods.contract.context import MethodError

POWER = 3
"""The stability counts to this power: with 1, groups that touch each other are cut without end."""


@dataclass(frozen=True)
class Candidate:
    """The criteria of one number of clusters: means over pairs of halves.

    Attributes:
        clusters: k.
        stability: adjusted Rand index of the clusterings found in two halves, over all samples.
        silhouette: simplified silhouette over all samples.
    """

    clusters: int
    stability: float
    silhouette: float


@dataclass(frozen=True)
class ClusterNumber:
    """The number of clusters that was found.

    Attributes:
        clusters: k.
        rule: why this k, in a sentence.
        tried: every k with its criteria.
    """

    clusters: int
    rule: str
    tried: tuple[Candidate, ...]

    @property
    def stability(self) -> float:
        """How far halves of the samples agree on this number."""
        return next(candidate.stability for candidate in self.tried if candidate.clusters == self.clusters)


def draw_half(samples: ClientSamples, seed: int, repeat: int) -> Tensor:
    """Draw half of each client's samples; return which samples are in it, bool (n,)."""
    first = torch.zeros(len(samples.x), dtype=torch.bool)
    for client in range(samples.clients):
        rows = torch.nonzero(samples.client == client).squeeze(1).numpy()
        rng = Streams(seed, repeat, client).numpy("half for the number of clusters")
        first[rng.permutation(rows)[: -(-len(rows) // 2)]] = True
    return first


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


class Clustering(NamedTuple):
    """All samples, in the space in which clusters were sought, and the centres of those, (k, d)."""

    samples: ClientSamples
    centres: Tensor


def compare_clusterings(first: Clustering, second: Clustering) -> tuple[float, float]:
    """Return stability and silhouette of two clusterings of the same samples, from what clients send: counts and sums.

    Each may be of a space of its own.
    """
    clusters = len(first.centres)
    a, score_a = simplified_silhouette(first.samples.x, first.centres)
    b, score_b = simplified_silhouette(second.samples.x, second.centres)
    table = counts(a.numpy(), b.numpy(), clusters, clusters)
    return table_ari(table), float((score_a + score_b).mean() / 2)


Half = Callable[[int], Clustering]
"""From a number of clusters to the clustering that one half of all clients' samples leads to."""
CollectHalf = Callable[[ClientSamples, Tensor, Search, int, int], Half]
"""Has clients send what is asked of one half of their samples, which is true in a tensor (n,).

It also takes the search, a seed and a number: even for a first half, the next one for a second. Raises a `MethodError`
where these are too few samples for the largest number of clusters.
"""


def find_cluster_number(
    samples: ClientSamples,
    search: Search,
    seed: int,
    watch: Callable[[int, int], None] | None = None,
    collect: CollectHalf | None = None,
) -> ClusterNumber:
    """Find the number of clusters of samples that stay with their clients.

    Args:
        samples: of all clients (see `project`).
        search: the numbers to try, and how often.
        seed: seed of every draw.
        watch: called with the number of comparisons done and their total.
        collect: how clusters are sought in a half of the samples; None: by federated K-means among these as they are.

    Raises:
        MethodError: too few samples for the largest number.
    """
    collect = collect or kmeans_half
    numbers = range(search.min_clusters, search.max_clusters + 1)
    compared: list[tuple[float, float]] = []
    for repeat in range(search.repeats):
        rows = draw_half(samples, seed, repeat)
        first = collect(samples, rows, search, seed, 2 * repeat)
        second = collect(samples, ~rows, search, seed, 2 * repeat + 1)
        for k in numbers:
            compared.append(compare_clusterings(first(k), second(k)))
            if watch is not None:
                watch(len(compared), search.repeats * len(numbers))
    means = np.reshape(compared, (search.repeats, len(numbers), 2)).mean(0).tolist()
    tried = tuple(Candidate(k, *criteria) for k, criteria in zip(numbers, means, strict=True))
    clusters, rule = choose_number(tried)
    return ClusterNumber(clusters, rule, tried)


class TooFewCentres(MethodError):
    """Clients found fewer local centres in a half than clusters are tried: `local`."""

    def __init__(self, local: int, search: Search) -> None:
        self.local = local
        super().__init__(
            f"half of the clients' samples gave {local} local centres, which is too few to try {search.max_clusters} "
            f"clusters: set choose.max_clusters to {max(2, local)} or less, or give model.clusters a number"
        )


def check_enough(local: int, wanted: int, search: Search) -> None:
    """Refuse a half in which clients found fewer local centres than are wanted.

    Raises:
        TooFewCentres: says what to set instead.
    """
    if local < wanted:
        raise TooFewCentres(local, search)


def kmeans_half(samples: ClientSamples, rows: Tensor, search: Search, seed: int, number: int) -> Half:
    """Have the clients send their local centres in a half of their samples; federated K-means starts from these."""
    part = samples.some(rows)
    local, behind = local_starts(part, search, seed, f"number of clusters, half {number}")
    check_enough(len(local), search.max_clusters, search)

    def clustering(clusters: int) -> Clustering:
        rng = Streams(seed, number // 2).numpy(f"number of clusters, {clusters}, half {number % 2}")
        return Clustering(samples, federated_kmeans(part, local, behind, clusters, search, rng))

    return clustering


def detail(tried: Candidate) -> float:
    """Return what so many clusters tell of a sample, as far as halves agree: stability^3 log k."""
    return max(tried.stability, 0) ** POWER * math.log(tried.clusters)


def choose_number(tried: Sequence[Candidate]) -> tuple[int, str]:
    """Return the number of the most `detail`, and the reason in a sentence.

    Membership in one of k even clusters tells log k of a sample. Stability alone wants few clusters where groups touch
    each other, and the silhouette few or many, by the space (docs/number-of-clusters.md).

    Args:
        tried: every number with its criteria.

    >>> choose_number([Candidate(2, 1.0, 0.5), Candidate(3, 0.95, 0.5), Candidate(4, 0.8, 0.5)])[0]
    3
    """
    best = max(tried, key=detail)
    stablest = max(tried, key=lambda number: number.stability)
    loudest = max(tried, key=lambda number: number.silhouette)
    agreement = f"adjusted Rand index {best.stability:.3f}"
    if stablest.clusters != best.clusters:
        agreement += f", of {stablest.clusters} clusters {stablest.stability:.3f}"
    rule = f"the most detail on which halves of the clients' samples agree ({agreement})"
    if loudest.clusters != best.clusters:
        rule += f"; the silhouette is largest at {loudest.clusters} ({loudest.silhouette:.3f})"
    return best.clusters, rule
