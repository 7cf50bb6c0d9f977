"""What federated K-means' moments, centres and sums must be, beside their shapes: what the samples could give."""

from __future__ import annotations

import math

from torch import Tensor

from shoal.methods.contract.message import Message

ROUNDING = 1e-6
"""What sums of weights may be off by, as a share."""


def score_bounds(centres: Tensor, prices: Tensor | None, softness: float, samples: int) -> tuple[Tensor, Tensor]:
    """Return what a client's samples of unit length can cost at least and at most under each start, (s,) each.

    Args:
        centres: (s, c, d).
        prices: (s, c); None: clusters have none, and the cost is the sum of squared distances.
        softness: as of `soft_sums`.
        samples: of the client.
    """
    length = centres.double().norm(dim=2)  # (s, c); a sample lies in the unit ball
    near, far = (length - 1).clamp_min(0).square(), (length + 1).square()
    if prices is None:
        return samples * near.amin(1), samples * far.amin(1)
    entropy = softness * math.log(length.shape[1])
    return samples * (-(prices.double() - near).amax(1) - entropy), samples * -(prices.double() - far).amax(1)


def no_negative_squares(message: Message) -> str | None:
    negative = bool((message.tensors["outer"].diagonal() < 0).any())
    return "tensor 'outer' holds negative sums of squares" if negative else None


def local_centres(message: Message, *, unit: bool) -> str | None:
    """A count for each centre; of samples of unit length no mean is longer."""
    centres, counts = message.tensors["centres"], message.tensors["counts"]
    if len(centres) != len(counts):
        return f"it holds {len(centres)} centres and {len(counts)} counts, expected as many"
    if unit and bool((centres.norm(dim=1) > 1 + ROUNDING).any()):
        return "tensor 'centres' holds a centre longer than 1, and the samples are of unit length"
    return None


def iteration(message: Message, *, score: str, bounds: tuple[Tensor, Tensor] | None) -> str | None:
    """The parts of an iteration's sums that can be checked against each other, and against the centres."""
    if score == "value" and (found := weights_products(message)):
        return found
    if bounds is None:
        return None
    sums, counts, told = (message.tensors[name].cpu() for name in ("sums", "counts", score))
    if bool((sums.norm(dim=2) > counts + ROUNDING * (1 + counts)).any()):
        return "tensor 'sums' holds a sum longer than its count, and the samples are of unit length"
    least, most = (bound.cpu() for bound in bounds)
    slack = ROUNDING * (1 + least.abs() + most.abs())
    wrong = (told < least - slack) | (told > most + slack)
    if bool(wrong.any()):
        k = int(wrong.nonzero()[0])
        return f"tensor {score!r} holds {told[k]:g} for start {k}, expected values from {least[k]:g} to {most[k]:g}"
    return None


def weights_products(message: Message) -> str | None:
    """Weights are 0 or more and sum to 1, so that a row of their products sums to the cluster's weight at most.

    With such products the server's Newton step has a solution, whoever sent them.
    """
    products, counts = message.tensors["products"], message.tensors["counts"]
    slack = ROUNDING * (1 + counts)
    if bool((products.sum(2) > counts + slack).any()) or bool(
        ((products - products.mT).abs() > slack[..., None]).any()
    ):
        return "tensor 'products' does not hold products of the weights that 'counts' sums"
    return None
