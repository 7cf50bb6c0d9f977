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

from shoal.methods.features.offsets import RaceEnd, enough_samples, race

SHARE = 0.5
"""A site takes so much of the distance of its mean."""
MOST_COST = 0.95
"""Sites differ where local centres cost at most this share of what they cost without offsets. On tuning sets of images
they cost 1.00 or more where sites are alike, whatever kinds they hold, and .57 to .94 with offsets; light that costs
more than this moves no clusters (research/docs/representations.md)."""


def offsets_if_sites_differ(
    sent: Sequence[tuple[Tensor, Tensor]], clusters: int, rng: np.random.Generator
) -> RaceEnd | None:
    """Return the federation's mean, from which sites find their offsets, and these; None of sites that are alike.

    Args:
        sent: by each of m clients, its local centres (l, k), and the samples behind each, (l,).
        clusters: c.
        rng: draws the starts of K-means.
    """
    end = race([centres for centres, _ in sent], sent, clusters, rng)
    if end.share > MOST_COST:
        return None
    offsets = [half_offset(n @ x / n.sum().clamp_min(1), end.mean, float(n.sum()), clusters) for x, n in sent]
    return end._replace(offsets=torch.stack(offsets))


def half_offset(site_mean: Tensor, mean: Tensor, samples: float, clusters: int) -> Tensor:
    """Return the offset (k,) of a site of so many samples by its mean and the federation's; 0 of too few."""
    return SHARE * (site_mean - mean) * enough_samples(samples, clusters)
