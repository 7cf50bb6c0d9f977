"""The number of clusters among landmarks: what one half of the clients' samples leads to.

Clients would send what they send in the rounds of a `FeatureClustering` with landmarks (see there and `spectral`), of
half of their samples. The landmarks and the sums of ties do not depend on the number of clusters; each number takes as
many eigenvectors.

Symbols in shapes: n samples of all clients, d features, k dimensions, s sets of m landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import (
    ClientSamples,
    Search,
    Traffic,
    federated_kmeans,
    local_starts,
    sums_by_client,
)
from shoal.methods.clustering.cluster_number import Clustering, too_few
from shoal.methods.clustering.federated_k_means import moved_centres, starting_centres
from shoal.methods.features.spectral import (
    SETTLING_ROUNDS,
    affinity_sums,
    in_spectral_space,
    landmark_count,
    landmarks_among,
    set_count,
    spectral_projection,
)


@dataclass(frozen=True)
class LandmarkHalf:
    """One half of all clients' samples, landmarks among them, and what ties these.

    Attributes:
        whole: the samples of both halves.
        rows: which are of this half, bool (n,).
        landmarks: (s, m, k).
        products: sums of all clients, (s, m, m).
        search, seed: see `find_cluster_number`.
        number: over all halves.
    """

    whole: ClientSamples
    rows: Tensor
    landmarks: Tensor
    products: Tensor
    search: Search
    seed: int
    number: int

    def clustering(self, clusters: int, traffic: Traffic) -> Clustering:
        """Return the clustering by as many eigenvectors as there are to be clusters."""
        projections = torch.stack([spectral_projection(each, clusters) for each in self.products])
        whole = self.whole._replace(x=in_spectral_space(self.whole.x, self.landmarks, projections))
        part = whole.some(self.rows)
        search = replace(self.search, max_clusters=clusters)
        local, counts = local_starts(part, search, self.seed, f"{clusters} clusters by landmarks, half {self.number}")
        traffic.exchange(1, up=local.numel() + counts.numel())
        traffic.exchange(whole.clients, down=projections.numel())
        if len(local) < clusters:
            raise too_few(len(local), self.search)
        rng = Streams(self.seed, self.number).numpy(f"{clusters} clusters by landmarks")
        start = starting_centres(local, counts, clusters, search.starts, rng)
        return Clustering(whole, federated_kmeans(part, start, search, traffic))


@dataclass(frozen=True)
class LandmarkHalves:
    """Places landmarks in halves of all clients' samples.

    Attributes:
        wished: landmarks in a set, as settings have it.
    """

    wished: int

    def __call__(
        self, samples: ClientSamples, rows: Tensor, search: Search, seed: int, number: int, traffic: Traffic
    ) -> LandmarkHalf:
        """Return a half with its landmarks and what ties them (see `CollectHalf`)."""
        part = samples.some(rows)
        count = landmark_count(self.wished, search.max_clusters)
        own_centres = replace(search, max_clusters=count)
        names = [f"landmarks, half {number}, set {place}" for place in range(set_count(count))]
        sets = [local_starts(part, own_centres, seed, name) for name in names]
        for local, counts in sets:
            traffic.exchange(1, up=local.numel() + counts.numel())
        fewest = min(len(local) for local, _ in sets)
        if fewest < search.max_clusters:
            raise too_few(fewest, search)
        rng = Streams(seed, number).numpy("landmarks of a half")
        placed = [landmarks_among(local, counts, min(fewest, count), rng) for local, counts in sets]
        landmarks = torch.stack(placed)
        for _ in range(SETTLING_ROUNDS):
            sums, counts, _ = sums_by_client(part, landmarks, search.least_points)
            landmarks = moved_centres(landmarks, sums.sum(0), counts.sum(0))
            traffic.exchange(part.clients, up=sums[0].numel() + counts[0].numel(), down=landmarks.numel())
        products = sum(
            affinity_sums(part.samples_of(client), landmarks, min_points=search.least_points)
            for client in range(part.clients)
        )
        assert isinstance(products, Tensor)
        traffic.exchange(part.clients, up=products.numel(), down=landmarks.numel())
        return LandmarkHalf(samples, rows, landmarks, products, search, seed, number)
