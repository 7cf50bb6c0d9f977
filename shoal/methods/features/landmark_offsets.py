"""Offsets of sites among landmarks: found by the clients' local centres, before landmarks are placed among these.

Whether sites differ the server asks K-means of the local centres, as `offsets` has it: with offsets and without. Where
they do, each site takes half of the distance of its mean from the federation's. What is left of an offset does no harm
to landmarks, and a site of few kinds, whose mean tells of these as well, stays near them.

Symbols in shapes: l local centres of a client, k dimensions, c clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import ClientSamples, Search, local_starts
from shoal.methods.clustering.federated_k_means import cluster_sums, moved_centres
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.features.offsets import beginnings, enough_samples, site_fit

SHARE = 0.5
"""A site takes so much of the distance of its mean."""
STARTS = 3
ITERATIONS = 5
"""Of K-means, the best of so many starts, and then with offsets so many iterations, whose costs are compared."""
MOST_COST = 0.95
"""Sites differ where local centres cost at most this share of what they cost without offsets. On tuning sets of images
they cost 1.00 or more where sites are alike, whatever kinds they hold, and .57 to .94 with offsets; light that costs
more than this moves no clusters (research/docs/representations.md)."""


def offsets_if_sites_differ(
    sent: Sequence[tuple[Tensor, Tensor]], clusters: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor] | None:
    """Return the federation's mean (k,), from which sites find their offsets, and these (m, k); None of sites alike.

    Args:
        sent: by each of m clients, its local centres (l, k), and the samples behind each, (l,).
        clusters: c.
        rng: draws the starts of K-means.
    """
    told = [pair for pair in sent if len(pair[1])]
    if len(told) < 2:
        return None
    mean, begun = beginnings(told, clusters)
    if len(begun) == 1 or len(begun[0][1]) < clusters:
        return None
    local = [centres for centres, _ in told]
    costs = [cost_of(local, moved, clusters, share, mean, rng) for share, moved in begun]
    if min(costs) > MOST_COST * costs[0]:
        return None
    return mean, torch.stack(
        [half_offset(n @ x / n.sum().clamp_min(1), mean, float(n.sum()), clusters) for x, n in sent]
    )


def less_offsets(samples: ClientSamples, landmarks: int, clusters: int, seed: int) -> ClientSamples:
    """Return samples of all clients less the offsets that a run would take off, where sites differ.

    Args:
        samples: in the space in which landmarks are placed.
        landmarks: local centres that a client looks for, at most.
        clusters: c.
        seed: of local centres and of the starts.
    """
    search = Search(max_clusters=landmarks)
    parts = [samples.some(samples.client == client) for client in range(samples.clients)]
    sent = [local_starts(part, search, seed, "offsets of sites") for part in parts]
    offsets = offsets_if_sites_differ(sent, clusters, Streams(seed).numpy("offsets of sites"))
    if offsets is None:
        return samples
    return samples._replace(x=samples.x - offsets[1][samples.client])


def cost_of(
    local: Sequence[Tensor], moved: Tensor, clusters: int, share: float, mean: Tensor, rng: np.random.Generator
) -> float:
    """Return what local centres cost by K-means that begins among them as an offset has moved them; see `site_fit`."""
    centres = torch.from_numpy(kmeans(moved.cpu().numpy(), clusters, rng, starts=STARTS).centres).double()
    cost = 0.0
    for _ in range(ITERATIONS):
        fits = [site_fit(z, centres, share, mean) for z in local]
        cost = float(torch.stack([fit.cost for fit in fits]).sum())
        less = torch.cat([z - fit.offset for z, fit in zip(local, fits, strict=True)])
        sums = cluster_sums(less, centres[None])
        centres = moved_centres(centres[None], sums.sums, sums.counts)[0]
    return cost


def half_offset(site_mean: Tensor, mean: Tensor, samples: float, clusters: int) -> Tensor:
    """Return the offset (k,) of a site of so many samples by its mean and the federation's; 0 of too few."""
    return SHARE * (site_mean - mean) * enough_samples(samples, clusters)
