"""Federated K-means towards clusters of one size: each has a price, which rises as too few samples come.

A sample pays the squared distance to a centre less that cluster's price, and goes to the cheapest, softly: with
softness e it belongs to cluster j by exp((price_j - d_j^2) / e), scaled so that its weights sum to 1. A cluster of
weight m_j has the price lambda log(m / m_j), where m would be even: lambda, the evenness, says how much a distance
counts against an uneven size, so that classes that are not quite even stay together. This is entropic transport from
samples to clusters with a relaxed marginal (Cuturi 2013; Chizat et al. 2018); the centres are the weighted means, as
in K-means with transport for assignment (Genevay et al. 2019).

One iteration needs sums over all samples alone, so that samples stay with their clients: those that move the centres,
and how the clusters' weights answer to prices, with which the server takes a Newton step. Over all clients an iteration
is the same as on their pooled samples.

Symbols in shapes: n samples, d features, c clusters, s starts that go on side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 2048
"""Samples in one pass when distances are taken."""
LONGEST = 2.0
"""A price changes by at most so many times the softness in one step: far from the solution Newton's goes too far."""
NOTHING = 1e-9
"""Taken for the weight of an even cluster where nobody sent any."""


class SoftSums(NamedTuple):
    """What one iteration takes from some samples, float64; those of several clients add up.

    Attributes:
        sums: (s, c, d), the samples, each by its weight in a cluster.
        counts: (s, c), the weights.
        products: (s, c, c), the products of a sample's weights in two clusters.
        value: (s,), what the samples pay, the entropy of their weights included.
    """

    sums: Tensor
    counts: Tensor
    products: Tensor
    value: Tensor


def soft_sums(x: Tensor, centres: Tensor, prices: Tensor, softness: float, *, least: float = 0) -> SoftSums:
    """One client's part of an iteration.

    Args:
        x: (n, d).
        centres: (s, c, d).
        prices: (s, c), in squared distances.
        softness: above 0, in squared distances.
        least: a cluster in which the client's samples weigh less is left out of sums, counts and products: its mean
            would tell of single samples.
    """
    x, centres, prices = x.double(), centres.double().to(x.device), prices.double().to(x.device)
    starts, clusters, width = centres.shape
    sums, counts = centres.new_zeros(starts, clusters, width), centres.new_zeros(starts, clusters)
    products, value = centres.new_zeros(starts, clusters, clusters), centres.new_zeros(starts)
    for part in x.split(ROWS):
        squared = part.square().sum(1)[None, :, None] - 2 * part @ centres.mT + centres.square().sum(2)[:, None, :]
        gain = (prices[:, None, :] - squared.clamp_min(0)) / softness
        weight = gain.softmax(2)  # (s, n, c)
        sums += weight.mT @ part
        counts += weight.sum(1)
        products += weight.mT @ weight
        value -= softness * gain.logsumexp(2).sum(1)
    few = counts < least
    products = products.masked_fill(few[:, :, None] | few[:, None, :], 0)
    return SoftSums(sums.masked_fill(few[..., None], 0), counts.masked_fill(few, 0), products, value)


def moved_prices(prices: Tensor, counts: Tensor, products: Tensor, softness: float, evenness: float) -> Tensor:
    """The prices (s, c), float64, after one Newton step towards those at which the clusters' sizes are worth them.

    Args:
        prices: (s, c), under which the sums were taken.
        counts, products: of all samples.
        softness: as of `soft_sums`.
        evenness: lambda, above 0, in squared distances.
    """
    prices = prices.double()
    worth = _worth(prices, counts, evenness)
    answer = (torch.diag_embed(counts) - products) / softness + torch.diag_embed(worth / evenness)
    step = torch.linalg.solve(answer, worth - counts)
    result: Tensor = prices + step.clamp(-LONGEST * softness, LONGEST * softness)
    return result


def cost(value: Tensor, prices: Tensor, counts: Tensor, evenness: float) -> Tensor:
    """What the clusters of each start cost (s,): distances, entropy, and the uneven sizes.

    It is the dual's value, at most the least cost with these centres, and that where prices fit the sizes.

    Args:
        value, counts: of all samples.
        prices, evenness: as of `moved_prices`.
    """
    prices = prices.double()
    at_none = _worth(torch.zeros_like(prices), counts, evenness)
    return value + evenness * (at_none - _worth(prices, counts, evenness)).sum(1)


def lifted_samples(x: Tensor) -> Tensor:
    """Samples (n, d) as (n, d + 1), for distances to `lifted_centres`."""
    return torch.cat((x, x.new_zeros(len(x), 1)), 1)


def lifted_centres(centres: Tensor, prices: Tensor) -> Tensor:
    """Centres (c, d) as (c, d + 1), such that the nearest one is the cheapest.

    A centre is moved out of the samples' space by the square root of what its price lacks to the highest: its squared
    distances to all samples grow by just that.
    """
    return torch.cat((centres, (prices.max() - prices).sqrt()[:, None].to(centres)), 1)


def _worth(prices: Tensor, counts: Tensor, evenness: float) -> Tensor:
    """The sizes at which clusters would have these prices (s, c)."""
    return counts.mean(1, keepdim=True).clamp_min(NOTHING) * torch.exp(-prices / evenness)
