"""The space in which a method clusters features, found from a draw of the clients' samples before the run.

Clients would send what they send in the first rounds of a `FeatureClustering`: moments, and products with directions.

Symbols in shapes: n samples of all clients, d features, k dimensions.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.clustering.client_samples import ClientSamples, Search, local_centres
from shoal.methods.clustering.federated_k_means import summed
from shoal.methods.features.components import (
    block_products,
    first_block,
    next_block,
    principal_components,
    with_answer,
)
from shoal.methods.features.feature_clustering import FeatureClustering
from shoal.methods.features.landmark_offsets import offsets_if_sites_differ
from shoal.methods.features.offsets import MOST_COST, RaceEnd, race
from shoal.methods.features.space import column_moments, projected

MAX_COLUMNS = 100
"""Of more columns, of which the method keeps all, so many components are kept here."""


def method_space(method: FeatureClustering, vectors: ClientSamples) -> ClientSamples:
    """Return vectors (n, d) in the space in which the method clusters them, or places landmarks among them, (n, k).

    Args:
        method: that clusters the samples; its seed draws the first directions.
        vectors: what its source makes of samples of all clients.

    Raises:
        MethodError: features that are the same for all samples.
    """
    settings = method.settings
    parts = [vectors.samples_of(client) for client in range(vectors.clients)]
    site_means = [part.mean(0) if settings.centre_sites else None for part in parts]
    space: dict[str, Tensor] = {}
    if method.measures:
        sums = summed(column_moments(part) for part in parts if len(part) >= settings.min_points)
        space = method.fitted_space(sums)
    z = [projected(part, space, mean) for part, mean in zip(parts, site_means, strict=True)]
    count = settings.components or (MAX_COLUMNS if vectors.x.shape[1] > MAX_COLUMNS else 0)
    if count:
        projection = components_of(method, z, count)
        z = [part @ projection for part in z]
    x = torch.cat(z)
    return vectors._replace(x=F.normalize(x, dim=1) if settings.directions else x)


def components_of(method: FeatureClustering, parts: list[Tensor], count: int) -> Tensor:
    """Return the projection (d, k) onto the principal components of the clients' vectors, by rounds of `components`."""
    settings = method.settings
    drawn = Streams(method.context.seed).torch("principal components")
    block: Tensor | None = first_block(parts[0].shape[1], count, drawn)
    state: dict[str, Tensor] = {}
    while block is not None:
        asked = block
        answers = (block_products([part], asked) for part in parts if len(part) >= settings.min_points)
        state = dict(with_answer(state, asked, summed(answers)))
        block = next_block(state, asked)
    return principal_components(state, count, settings.whitening)


def less_offsets(samples: ClientSamples, search: Search, seed: int, landmarks: int = 0) -> ClientSamples:
    """Return samples in the space less the offsets that a run would take off; the same ones where sites are alike.

    The number of clusters is not known, but K-means finds much the same offsets beside any. So sites differ where these
    lower the cost beside three numbers in a row; beside one alone they may be what kinds differ by.

    Args:
        samples: of all clients.
        search: the numbers to try.
        seed: of local centres and of the starts.
        landmarks: local centres that a client looks for, at most; 0: clusters are sought by K-means.
    """
    purpose = "offsets of sites"
    rng = Streams(seed).numpy(purpose)
    wide = replace(search, max_clusters=landmarks or search.max_clusters)
    sent = local_centres(samples, wide, seed, purpose)
    if landmarks:
        chosen_end: RaceEnd | None = offsets_if_sites_differ(sent, search.min_clusters, rng)
    else:
        vectors = [samples.samples_of(client) for client in range(samples.clients)]
        numbers = range(search.min_clusters, search.max_clusters + 1)
        ends = [race(vectors, sent, clusters, rng) for clusters in numbers]
        shares = [end.share for end in ends]
        largest = list(map(max, shares, shares[1:], shares[2:]))
        if min(largest, default=1.0) > MOST_COST:
            return samples
        chosen_end = ends[1 + largest.index(min(largest))]
    if chosen_end is None:
        return samples
    return samples._replace(x=samples.x - chosen_end.offsets[samples.client])
