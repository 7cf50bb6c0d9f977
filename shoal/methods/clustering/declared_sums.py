"""Checks of federated K-means' moments, centres and sums beyond their shapes: could the client's samples give them?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shoal.methods.contract.message import Message

ROUNDING = 1e-6
"""Allowed error of sums of weights, as a share."""


def score_bounds(centres: Tensor, prices: Tensor | None, softness: float, samples: int) -> tuple[Tensor, Tensor]:
    """Return the least and the largest cost of a client's samples of unit length under each start, (s,) each.

    Args:
        centres: (s, c, d).
        prices: (s, c); None: clusters have none, and the cost is the sum of squared distances.
        softness: see `soft_sums`.
        samples: number of the client's samples.
    """
    length = centres.double().norm(dim=2)  # (s, c); a sample lies in the unit ball
    near = (length - 1).clamp_min(0).square()
    far = (length + 1).square()
    if prices is None:
        return samples * near.amin(1), samples * far.amin(1)
    entropy = softness * math.log(length.shape[1])
    return samples * (-(prices.double() - near).amax(1) - entropy), samples * -(prices.double() - far).amax(1)


def check_squares(message: Message) -> str | None:
    """Return the fault of sums of squares that are negative, else None."""
    negative = bool((message.tensors["outer"].diagonal() < 0).any())
    return "tensor 'outer' holds negative sums of squares" if negative else None


def check_products(message: Message, *, block: Tensor) -> str | None:
    """Return the fault of products with a block of directions (d, b) by which a variance is negative, else None."""
    products = message.tensors["products"].cpu()
    lengths = products.norm(dim=0)
    negative = bool(((block.cpu() * products).sum(0) < -ROUNDING * lengths).any())
    return "tensor 'products' holds a negative sum of squares" if negative else None


def check_local_centres(message: Message, *, unit: bool) -> str | None:
    """Return the fault of local centres, else None: each has a count, and no mean of unit vectors is longer than 1."""
    centres = message.tensors["centres"]
    counts = message.tensors["counts"]
    if centres.shape[-2] != counts.shape[-1]:
        return f"it holds {centres.shape[-2]} centres and {counts.shape[-1]} counts, expected as many"
    if unit and bool((centres.norm(dim=-1) > 1 + ROUNDING).any()):
        return "tensor 'centres' holds a centre longer than 1, and the samples are of unit length"
    return None


def check_affinities(message: Message, *, samples: int) -> str | None:
    """Return the fault of sums of products of affinities, else None: symmetric, and at most 1 a sample in a set."""
    products = message.tensors["products"]
    if bool((products - products.mT).abs().max() > ROUNDING * (1 + samples)):
        return "tensor 'products' is not symmetric"
    most = float(products.sum((1, 2)).max())
    if most > samples * (1 + ROUNDING):
        return f"tensor 'products' sums to {most:g}, expected at most {samples}, one a sample"
    return None


def check_iteration(message: Message, *, score: str, bounds: tuple[Tensor, Tensor] | None) -> str | None:
    """Return the fault of an iteration's sums by each other and by the centres, else None.

    Args:
        message: with `sums`, `counts` and the score.
        score: name of the tensor with the cost of each start.
        bounds: least and largest cost under each start, (s,) each; None where nothing bounds them.
    """
    if score == "value" and (fault := products_fault(message)):
        return fault
    if bounds is None:
        return None
    sums, counts, values = (message.tensors[name].cpu() for name in ("sums", "counts", score))
    if bool((sums.norm(dim=2) > counts + ROUNDING * (1 + counts)).any()):
        return "tensor 'sums' holds a sum longer than its count, and the samples are of unit length"
    low, high = (bound.cpu() for bound in bounds)
    slack = ROUNDING * (1 + low.abs() + high.abs())
    wrong = (values < low - slack) | (values > high + slack)
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        return f"tensor {score!r} holds {values[k]:g} for start {k}, expected values from {low[k]:g} to {high[k]:g}"
    return None


def check_costs(message: Message, *, centres: Tensor, samples: int) -> str | None:
    """Find costs of starts that no samples can have together, from the triangle inequality; None: they may be true.

    A sample is at most as far from the centres of start s as from those of start t, and from there to the nearest
    centre of s: sqrt(I_s) <= sqrt(I_t) + sqrt(n) max_c min_c' |mu_tc - mu_sc'|.

    Args:
        message: with `cheapest`, the least cost of all starts, and `inertia` (s,), what each start costs above it.
        centres: (s, c, d), under which it was taken.
        samples: n, of the client.
    """
    excess = message.tensors["inertia"].cpu()
    cheapest = int(excess.argmin())
    if float(excess[cheapest]) != 0:
        return f"tensor 'inertia' begins at {excess[cheapest]:g}, expected 0 for the cheapest start"
    lowest_cost = float(message.tensors["cheapest"])
    between = torch.cdist(centres[cheapest].cpu().double(), centres.cpu().double())  # (s, c, c)
    max_excess = (math.sqrt(lowest_cost) + math.sqrt(samples) * between.amin(2).amax(1)).square() - lowest_cost
    wrong = excess > max_excess * (1 + ROUNDING) + ROUNDING * (1 + lowest_cost)
    if bool(wrong.any()):
        start = int(wrong.nonzero()[0])
        return (
            f"tensor 'inertia' holds {excess[start]:g} for start {start}, expected at most {max_excess[start]:g} above "
            f"the {lowest_cost:g} of start {cheapest}"
        )
    return None


def products_fault(message: Message) -> str | None:
    """Return the fault of the products of weights, else None.

    Weights are 0 or more and sum to 1, so that a row of their products sums to the cluster's weight at most. With such
    products the server's Newton step has a solution, whatever a client sent.
    """
    products = message.tensors["products"]
    counts = message.tensors["counts"]
    slack = ROUNDING * (1 + counts)
    too_large = bool((products.sum(2) > counts + slack).any())
    if too_large or bool(((products - products.mT).abs() > slack[..., None]).any()):
        return "tensor 'products' does not hold products of the weights that 'counts' sums"
    return None
