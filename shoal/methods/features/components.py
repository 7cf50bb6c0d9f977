"""Principal components of the vectors of all clients, of which only products with a few directions leave a client.

The server sends a block Q (d, b) of orthonormal directions, and each client answers with the product Z' Z Q of its
vectors Z (n, d), centred and scaled. Over all clients these add up to n times the covariance times Q. The next block is
the part of the answer that lies in none of the earlier blocks, and after `BLOCKS` of them the components are sought in
the space of all (block Krylov iteration, Musco and Musco 2015, algorithm 2). A covariance matrix (d, d), which for
thousands of columns is a hundred times as large as a block, is never made. Blocks and answers travel as float32.

Symbols in shapes: n samples, d columns, b directions in a block, m directions in all blocks, k components.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Tensors

BLOCKS = 4
OVERSAMPLING = 16
"""A block holds half as many directions as components that are sought, and so many more."""
MIN_VARIANCE = 1e-6
"""Directions with less than this share of the largest variance count as constant: float32 knows no less."""
BLOCK = "components.block"
"""Among the server's tensors while components are sought, float32: the block that clients answer to, (d, b)."""
ASKED = "components.asked"
ANSWERED = "components.answered"
"""Among the server's state, float64 (d, m): all blocks so far, and the covariance times these."""


def block_count(width: int, components: int) -> int:
    """Return how many blocks are asked for among vectors of `width` numbers, at most.

    >>> block_count(5120, 64), block_count(100, 64), block_count(20, 64)
    (4, 3, 1)
    """
    return min(BLOCKS, math.ceil(width / block_size(components)))


def block_size(components: int) -> int:
    """Return how many directions a block has: 40 for 64 components."""
    return math.ceil((components + OVERSAMPLING) / 2)


def first_block(width: int, components: int, generator: torch.Generator) -> Tensor:
    """Return orthonormal directions, float32 (d, b): drawn at random, or all there are where b would be d or more."""
    size = block_size(components)
    if size >= width:
        return torch.eye(width)
    drawn = torch.randn(width, size, generator=generator, dtype=torch.float64)
    return orthonormal(drawn).float()


def orthonormal(columns: Tensor) -> Tensor:
    """Return orthonormal columns, as many, of which the first j span what the first j given ones do (d, b).

    They come from Householder reflections, which find further directions where the columns have not so many.
    """
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


def block_products(parts: Iterable[Tensor], block: Tensor) -> Tensors:
    """Return what a client answers to a block: `samples`, and the `products` of its vectors with it, float32 (d, b).

    Args:
        parts: the client's vectors, centred and scaled, float64 (m, d) each.
        block: (d, b).
    """
    block = block.double()
    products = torch.zeros_like(block)
    samples = 0
    for z in parts:
        products += z.mT @ (z @ block)
        samples += len(z)
    return {"samples": torch.tensor(float(samples), dtype=torch.float64), "products": products.float()}


def with_answer(state: Tensors, block: Tensor, answer: Tensors) -> Tensors:
    """Return the state with one more block and the sum of all clients' `block_products` on it.

    Raises:
        MethodError: no client has answered with samples.
    """
    if not answer["samples"] > 0:
        raise MethodError("no client has enough samples to find components by: set method.min_points lower")
    block = block.double()
    covariance = answer["products"].double() / answer["samples"]
    earlier = (state[name] for name in (ASKED, ANSWERED)) if ASKED in state else (block[:, :0], block[:, :0])
    asked, answered = (torch.cat(pair, 1) for pair in zip(earlier, (block, covariance), strict=True))
    return {ASKED: asked, ANSWERED: answered}


def next_block(state: Tensors, block: Tensor) -> Tensor | None:
    """Return the directions of the newest answer that no block has yet, (d, b); None where enough have been asked for.

    Blocks of all d directions are enough: then the components are exact.

    Args:
        state: of `with_answer`.
        block: the newest one.
    """
    asked = state[ASKED]
    answered = state[ANSWERED]
    width, known = asked.shape
    size = block.shape[1]
    if known in (width, BLOCKS * size):
        return None
    newest = answered[:, -size:][:, : width - known]
    return orthonormal(torch.cat([asked, newest], 1))[:, known:].float()


def principal_components(state: Tensors, components: int, whitening: float) -> Tensor:
    """Return the projection (d, k) onto the leading components: those of the covariance within all blocks.

    Args:
        state: of `with_answer`.
        components: k at most; directions of no variance are left out.
        whitening: a component of variance v has variance v^(1 - whitening) after it.

    Raises:
        MethodError: no direction has any variance.
    """
    asked = state[ASKED]
    answered = state[ANSWERED]
    within = asked.mT @ answered
    variances, directions = torch.linalg.eigh((within + within.mT) / 2)
    variances = variances.flip(0)[:components]
    if not variances[0] > 0:
        raise MethodError("the features are the same for all samples: there is nothing to cluster")
    varying = variances > MIN_VARIANCE * variances[0]
    directions = directions.flip(1)[:, :components][:, varying]
    projection: Tensor = asked @ directions / variances[varying] ** (whitening / 2)
    return projection
