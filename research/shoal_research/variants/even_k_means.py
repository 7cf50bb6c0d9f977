"""Federated K-means towards clusters of equal size: each has a price, which rises while it has too few samples.

A sample pays the squared distance to a centre less that cluster's price, and belongs mostly to the cheapest: with
softness e its weight in cluster j is proportional to exp((price_j - d_j^2) / e), and its weights sum to 1. A cluster of
weight m_j has the price lambda log(m / m_j), where m is the even weight; lambda, the evenness, sets how much an uneven
size counts against a distance, so that classes that are not quite even stay together. This is entropic transport from
samples to clusters with a relaxed marginal (Cuturi 2013; Chizat et al. 2018); the centres are the weighted means, as
in K-means with transport for assignment (Genevay et al. 2019).

One iteration needs only sums over all samples, so that samples stay with their clients: the sums that move the centres,
and the derivative of the clusters' weights by the prices, for the server's Newton step. An iteration over all clients
equals one on their pooled samples.

Symbols in shapes: n samples, d features, c clusters, s starts side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 2048
"""Samples in one pass when distances are taken."""
MAX_STEP = 2.0
"""Largest change of a price in one step, as a multiple of the softness: far from the solution Newton's goes too far."""
MIN_WEIGHT = 1e-9
"""Weight of an even cluster where clients have sent no weight."""


class SoftSums(NamedTuple):
    """The sums of one iteration over some samples, float64; those of several clients add up.

    Attributes:
        sums: (s, c, d), of the samples times their weights in a cluster.
        counts: (s, c), of the weights.
        products: (s, c, c), of the products of a sample's weights in two clusters.
        value: (s,), of the samples' payments, the entropy of their weights included.
    """

    sums: Tensor
    counts: Tensor
    products: Tensor
    value: Tensor


def soft_sums(x: Tensor, centres: Tensor, prices: Tensor, softness: float, *, min_points: float = 0) -> SoftSums:
    """Return one client's part of an iteration.

    Args:
        x: (n, d).
        centres: (s, c, d).
        prices: (s, c), in squared distances.
        softness: above 0, in squared distances.
        min_points: a cluster in which the client's samples weigh less is left out of sums, counts and products: its
            mean would reveal single samples.
    """
    x = x.double()
    centres = centres.double().to(x.device)
    prices = prices.double().to(x.device)
    starts, clusters, width = centres.shape
    sums = centres.new_zeros(starts, clusters, width)
    counts = centres.new_zeros(starts, clusters)
    products = centres.new_zeros(starts, clusters, clusters)
    value = centres.new_zeros(starts)
    for part in x.split(ROWS):
        squared = part.square().sum(1)[None, :, None] - 2 * part @ centres.mT + centres.square().sum(2)[:, None, :]
        gain = (prices[:, None, :] - squared.clamp_min(0)) / softness
        weight = gain.softmax(2)  # (s, n, c)
        sums += weight.mT @ part
        counts += weight.sum(1)
        products += weight.mT @ weight
        value -= softness * gain.logsumexp(2).sum(1)
    few = counts < min_points
    products = products.masked_fill(few[:, :, None] | few[:, None, :], 0)
    return SoftSums(sums.masked_fill(few[..., None], 0), counts.masked_fill(few, 0), products, value)


def moved_prices(prices: Tensor, counts: Tensor, products: Tensor, softness: float, evenness: float) -> Tensor:
    """Return prices (s, c), float64, after one Newton step towards those that fit the clusters' sizes.

    Args:
        prices: (s, c), under which the sums were taken.
        counts, products: of all samples.
        softness: as in `soft_sums`.
        evenness: lambda, above 0, in squared distances.
    """
    prices = prices.double()
    worth = _worth(prices, counts, evenness)
    answer = (torch.diag_embed(counts) - products) / softness + torch.diag_embed(worth / evenness)
    step = torch.linalg.solve(answer, worth - counts)
    result: Tensor = prices + step.clamp(-MAX_STEP * softness, MAX_STEP * softness)
    return result


def cost(value: Tensor, prices: Tensor, counts: Tensor, evenness: float) -> Tensor:
    """Return the cost of the clusters of each start (s,): distances, entropy, and uneven sizes.

    It is the dual's value: at most the lowest cost with these centres, and equal to it where prices fit the sizes.

    Args:
        value, counts: of all samples.
        prices, evenness: as in `moved_prices`.
    """
    prices = prices.double()
    at_none = _worth(torch.zeros_like(prices), counts, evenness)
    return value + evenness * (at_none - _worth(prices, counts, evenness)).sum(1)


def lifted_samples(x: Tensor) -> Tensor:
    """Return samples (n, d) as (n, d + 1), for distances to `lifted_centres`."""
    return torch.cat((x, x.new_zeros(len(x), 1)), 1)


def lifted_centres(centres: Tensor, prices: Tensor) -> Tensor:
    """Return centres (c, d) as (c, d + 1), such that the nearest one is the cheapest.

    A centre moves out of the samples' space by the square root of the gap between its price and the highest price, so
    that its squared distances to all samples grow by just that gap.
    """
    return torch.cat((centres, (prices.max() - prices).sqrt()[:, None].to(centres)), 1)


def _worth(prices: Tensor, counts: Tensor, evenness: float) -> Tensor:
    """Return the sizes at which clusters would have these prices (s, c)."""
    return counts.mean(1, keepdim=True).clamp_min(MIN_WEIGHT) * torch.exp(-prices / evenness)
