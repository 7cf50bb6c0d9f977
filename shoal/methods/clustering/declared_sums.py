"""The forms of federated K-means' moments, centres and sums, and checks: could the client's samples give them?

Symbols in shapes: n samples, d dimensions, c clusters, s starts or sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message

ROUNDING = 1e-6
"""Allowed error of sums of weights, as a share."""
SQUARES_ROUNDING = 1e-11
"""Allowed error of squared distances, as a share of the squared norms that they are differences of."""
LARGEST = 1e30
"""Bound of sums over a client's vectors: columns may be in any unit."""


@dataclass(frozen=True)
class ClientLimits:
    """The limits of what a client can send, from what the server knows of its samples.

    Attributes:
        samples: n.
        min_points: a cluster of fewer samples is left out of its sums.
        energy: the largest sum of squared norms that its samples can have; infinite where the server knows none.
        weight: the number of samples for which each one of a draw stands; 1 where the client uses all of them.
    """

    samples: int
    min_points: int
    energy: float = math.inf
    weight: float = 1.0


def total_form(shape: tuple[int | range, ...], dtype: torch.dtype = torch.float64) -> TensorForm:
    """Return the form of sums of vectors."""
    return TensorForm(shape, dtype, minimum=-LARGEST, maximum=LARGEST)


def positive_form(shape: tuple[int | range, ...], *, measured: bool = True) -> TensorForm:
    """Return the form of sums of squares."""
    return TensorForm(shape, torch.float64, minimum=0, maximum=LARGEST, measured=measured)


def count_form(shape: tuple[int | range, ...], samples: int, *, measured: bool = False) -> TensorForm:
    """Return the form of numbers of a client's samples, of which it has so many."""
    return TensorForm(shape, torch.float64, minimum=0, maximum=samples, measured=measured)


def iteration_form(centres: Tensor, limits: ClientLimits) -> MessageForm:
    """Return the form of the sums, counts and costs of an iteration from centres (s, c, d)."""
    forms = {
        "sums": total_form(tuple(centres.shape)),
        "counts": count_form(tuple(centres.shape[:2]), limits.samples),
        "inertia": positive_form((len(centres),), measured=False),
    }
    return MessageForm(forms, rule=partial(check_move, centres=centres, limits=limits))


def check_counts(name: str, counts: Tensor, limits: ClientLimits, *, whole: bool = True) -> str | None:
    """Return the fault of the samples of each cluster that do not add up to those of the client, else None.

    Args:
        name: of the tensor.
        counts: (s, c); 0 for a cluster of fewer samples than `min_points`.
        limits: of the client.
        whole: whether a sample belongs to one cluster; otherwise to each by a weight.
    """
    hidden_samples = limits.min_points - 1 if whole else limits.min_points
    hidden = (counts == 0).sum(1) * hidden_samples * limits.weight
    least = limits.samples - hidden
    slack = ROUNDING * limits.samples
    total = counts.sum(1)
    wrong = (total > limits.samples + slack) | (total < least - slack)
    if (k := first_of(wrong)) is None:
        return None
    from_least = f"{max(0.0, float(least[k])):g} to " if hidden[k] else ""
    return f"tensor {name!r} sums to {total[k]:g}, expected {from_least}{limits.samples}, the client's samples"


def first_of(wrong: Tensor) -> int | None:
    """Return the first place at which a tensor (s,) is true; None where there is none."""
    return next(iter(wrong.nonzero().flatten().tolist()), None)


def check_samples(message: Message, limits: ClientLimits) -> str | None:
    """Return the fault of the number of samples behind moments, else None: all, or none where they are too few."""
    expected = limits.samples if limits.samples >= limits.min_points else 0
    count = float(message.tensors["samples"])
    return None if count == expected else f"tensor 'samples' holds {count:g}, expected {expected}"


def check_moments(message: Message, *, limits: ClientLimits) -> str | None:
    """Return the fault of the sums and sums of squares of a client's columns, else None (Cauchy-Schwarz)."""
    if fault := check_samples(message, limits):
        return fault
    total = message.tensors["total"]
    squares = message.tensors["squares"]
    if bool((total.square() > limits.samples * squares * (1 + ROUNDING)).any()):
        return "tensor 'total' holds a sum that is larger than the 'squares' allow"
    return None


def check_means(sums: Tensor, counts: Tensor, limits: ClientLimits) -> str | None:
    """Return the fault of sums that samples with the client's moments cannot have, else None.

    By Cauchy-Schwarz the squared norm of a cluster's sum is at most its count times its samples' squared norms.

    Args:
        sums: (s, c, d).
        counts: (s, c), or weights.
        limits: of the client.
    """
    squares = sums.square().sum(2)
    empty = counts <= 0
    if bool((squares[empty] > 0).any()):
        return "tensor 'sums' holds a sum of no samples"
    least = (squares / counts.where(~empty, 1)).sum(1)
    if bool((least > limits.energy * (1 + ROUNDING)).any()):
        largest = math.sqrt(limits.energy / limits.samples)
        return (
            f"tensor 'sums' holds means with a root mean square norm of {math.sqrt(least.max() / limits.samples):g}, "
            f"expected at most {largest:g}, that of the client's samples"
        )
    return None


def check_nearest(sums: Tensor, counts: Tensor, centres: Tensor, energy: Tensor) -> str | None:
    """Return the fault of a mean that lies nearer to another centre than to its own, else None.

    The samples that are nearest to a centre fill a convex region, so that their mean lies in it.

    Args:
        sums: (s, c, d).
        counts: (s, c).
        centres: under which the sums were taken, (s, c, d).
        energy: the largest sum of squared norms of the samples under each start, (s,).
    """
    some = counts > 0
    counts = counts.where(some, 1)
    means = sums / counts[..., None]
    lengths = centres.square().sum(2)
    distance = lengths[:, None] - 2 * means @ centres.mT  # (s, c, c), less the squared norm of the mean
    # What a sample's distances were rounded by grows with its squared norm.
    norms = lengths[:, None] + lengths[..., None] + (means.square().sum(2) + energy[:, None] / counts)[..., None]
    farther = distance.diagonal(dim1=1, dim2=2)[..., None] - distance > SQUARES_ROUNDING * norms
    wrong = (farther & some[..., None]).nonzero()
    if not len(wrong):
        return None
    _, cluster, other = wrong[0].tolist()
    return f"tensor 'sums' holds for cluster {cluster} a sum whose mean lies nearer to the centre of cluster {other}"


def check_move(message: Message, *, centres: Tensor, limits: ClientLimits) -> str | None:
    """Return the fault of the sums and costs of an iteration, else None.

    Args:
        message: with `sums`, `counts` and `inertia`, what each start costs.
        centres: (s, c, d), under which they were taken.
        limits: of the client.
    """
    sums, counts, costs = (message.tensors[name].cpu() for name in ("sums", "counts", "inertia"))
    centres = centres.cpu()
    by_cost = 2 * (costs + (counts * centres.square().sum(2)).sum(1))
    return (
        check_counts("counts", counts, limits)
        or check_means(sums, counts, limits)
        or check_nearest(sums, counts, centres, by_cost.clamp_max(limits.energy))
        or check_spread(sums, counts, costs, centres)
        or check_largest_costs(costs, centres, limits)
    )


def check_weighed(message: Message, *, centres: Tensor, plain: Tensor, limits: ClientLimits) -> str | None:
    """Return the fault of what starts cost, else None.

    Args:
        message: with `inertia` (s,).
        centres: (s, c, d), of the starts.
        plain: bool (s,), the starts whose costs are squared distances to the nearest centre.
        limits: of the client.
    """
    costs = message.tensors["inertia"].cpu()
    centres = centres.cpu()
    fault = check_largest_costs(costs, centres, limits)
    return fault or check_costs(costs[plain], centres[plain], limits.samples)


def check_spread(sums: Tensor, counts: Tensor, costs: Tensor, centres: Tensor) -> str | None:
    """Return the fault of costs that are too low for the sums, else None.

    Samples lie on average at least as far from a centre as their mean does.

    Args:
        sums: (s, c, d).
        counts: (s, c).
        costs: the most that the samples' squared distances to their centres sum to, (s,).
        centres: (s, c, d).
    """
    means = sums / counts.where(counts > 0, 1)[..., None]
    low = (counts * (means - centres).square().sum(2)).sum(1)
    norms = (counts * (centres.square() + means.square()).sum(2)).sum(1)
    slack = SQUARES_ROUNDING * (costs.abs() + norms) + ROUNDING * low
    wrong = costs < low - slack
    if (k := first_of(wrong)) is None:
        return None
    return f"start {k} costs {costs[k]:g}, expected at least {low[k]:g} by its sums"


def check_largest_costs(costs: Tensor, centres: Tensor, limits: ClientLimits) -> str | None:
    """Return the fault of costs that are too high for the client's moments, else None.

    Samples cost at most what they would if all belonged to one centre.

    Args:
        costs: sums of squared distances to the nearest centre, (s,).
        centres: (s, c, d).
        limits: of the client.
    """
    norms = centres.square().sum(2).sqrt()
    high = (math.sqrt(limits.energy) + math.sqrt(limits.samples) * norms).square().amin(1)
    wrong = costs > high + ROUNDING * (1 + high.abs())
    if (k := first_of(wrong)) is None:
        return None
    return f"start {k} costs {costs[k]:g}, expected at most {high[k]:g} by the client's moments"


def check_outer(message: Message, *, limits: ClientLimits) -> str | None:
    """Return the fault of the sums of outer products of a client's samples, else None."""
    negative = bool((message.tensors["outer"].diagonal() < 0).any())
    return check_samples(message, limits) or ("tensor 'outer' holds negative sums of squares" if negative else None)


def check_products(message: Message, *, block: Tensor, limits: ClientLimits) -> str | None:
    """Return the fault of products with a block of orthonormal directions (d, b), else None.

    Along no direction is the sum of squares negative, and together they are at most the squared norms of the samples.
    """
    if fault := check_samples(message, limits):
        return fault
    products = message.tensors["products"].cpu()
    squares = (block.cpu() * products).sum(0)
    if bool((squares < -ROUNDING * products.norm(dim=0)).any()):
        return "tensor 'products' holds a negative sum of squares"
    if float(squares.sum()) > limits.energy * (1 + ROUNDING):
        return f"tensor 'products' holds squares that sum to {squares.sum():g}, expected at most {limits.energy:g}"
    return None


def check_local_centres(message: Message, *, unit: bool, samples: int) -> str | None:
    """Return the fault of local centres, else None.

    Each has a count, which sum to at most the client's samples, and no mean of unit vectors is longer than 1.
    """
    centres = message.tensors["centres"]
    counts = message.tensors["counts"]
    if centres.shape[-2] != counts.shape[-1]:
        return f"it holds {centres.shape[-2]} centres and {counts.shape[-1]} counts, expected as many"
    most = float(counts.sum(-1).max())
    if most > samples * (1 + ROUNDING):
        return f"tensor 'counts' sums to {most:g}, expected at most {samples}, the client's samples"
    if unit and bool((centres.norm(dim=-1) > 1 + ROUNDING).any()):
        return "tensor 'centres' holds a centre longer than 1, and the samples are of unit length"
    return None


def check_starts(message: Message, *, unit: bool, limits: ClientLimits) -> str | None:
    """Return the fault of several sets of local centres, (s, c, d), else None.

    A set of no centres is that of a client with too few samples.
    """
    if fault := check_local_centres(message, unit=unit, samples=limits.samples):
        return fault
    counts = message.tensors["counts"]
    if counts.shape[1] and (fault := check_counts("counts", counts, limits)):
        return fault
    longest = float(message.tensors["centres"].square().sum(2).max()) if counts.shape[1] else 0.0
    if longest > limits.energy * (1 + ROUNDING):
        return (
            f"tensor 'centres' holds a centre of length {math.sqrt(longest):g}, expected at most "
            f"{math.sqrt(limits.energy):g}, by the client's moments"
        )
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


def check_costs(costs: Tensor, centres: Tensor, samples: int) -> str | None:
    """Return the fault of costs of starts that no samples can have together, by the triangle inequality, else None.

    A sample is at most as far from the centres of start s as from those of start t, and from there to the nearest
    centre of s: sqrt(I_s) <= sqrt(I_t) + sqrt(n) max_c min_c' |mu_tc - mu_sc'|.

    Args:
        costs: what each start costs (s,).
        centres: (s, c, d), under which it was taken.
        samples: n, of the client.
    """
    cheapest = int(costs.argmin())
    between = torch.cdist(centres[cheapest].double(), centres.double())  # (s, c, c)
    most = (costs[cheapest].sqrt() + math.sqrt(samples) * between.amin(2).amax(1)).square()
    wrong = costs > most * (1 + ROUNDING) + ROUNDING
    if (start := first_of(wrong)) is None:
        return None
    return (
        f"tensor 'inertia' holds {costs[start]:g} for start {start}, expected at most {most[start]:g} beside the "
        f"{costs[cheapest]:g} of start {cheapest}"
    )
