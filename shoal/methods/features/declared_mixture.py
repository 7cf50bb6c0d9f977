"""Checks of the statistics of a mixture of Gaussians beyond their shapes: could the client's samples give them?

Symbols in shapes: k dimensions, c components.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.methods.clustering.declared_sums import (
    ROUNDING,
    SQUARES_ROUNDING,
    ClientLimits,
    check_counts,
    check_means,
    check_nearest,
)
from shoal.methods.contract.message import Message
from shoal.methods.features.mixture import Mixture, Shape


def check_mixture(
    message: Message, *, mixture: Mixture | None, centres: Tensor, shape: Shape, limits: ClientLimits
) -> str | None:
    """Return the fault of a client's statistics, else None.

    Args:
        message: with `weights` (c,), `sums` (c, k) and `products` by shape.
        mixture: gave the responsibilities; None: each vector belongs to its nearest centre.
        centres: (c, k).
        shape: of the covariances.
        limits: of the client.
    """
    weights, sums, products = (message.tensors[name].cpu() for name in ("weights", "sums", "products"))
    fault = (
        check_counts("weights", weights[None], limits, whole=mixture is None)
        or check_means(sums[None], weights[None], limits)
        or check_products(weights, sums, products, shape, limits)
    )
    if fault is not None:
        return fault
    if mixture is None:
        energy = squares_of(products).sum()[None]
        return check_nearest(sums[None], weights[None], centres.cpu()[None], energy)
    return check_components(weights, sums, products, mixture, limits)


def squares_of(products: Tensor) -> Tensor:
    """Return the sums of squares among the products of columns: (c, k), or (k,) where covariances are tied."""
    return products.diagonal(dim1=-2, dim2=-1)


def check_products(weights: Tensor, sums: Tensor, products: Tensor, shape: Shape, limits: ClientLimits) -> str | None:
    """Return the fault of products that no samples of these sums and moments have, else None (Cauchy-Schwarz)."""
    squares = squares_of(products)
    least = sums.square() / weights.where(weights > 0, 1)[:, None]
    if shape == "tied":
        least = least.sum(0)
    if bool((squares < least - SQUARES_ROUNDING * (squares.abs() + least)).any()):
        return "tensor 'products' holds a sum of squares that is smaller than the 'sums' allow"
    if float(squares.sum()) > limits.energy * (1 + ROUNDING):
        return f"tensor 'products' holds squares that sum to {squares.sum():g}, expected at most {limits.energy:g}"
    roots = squares.clamp_min(0).sqrt()
    largest = roots[..., :, None] * roots[..., None, :]
    if bool((products.abs() > largest * (1 + ROUNDING) + SQUARES_ROUNDING * squares.max()).any()):
        return "tensor 'products' holds a product that is larger than the squares allow"
    return None


def check_components(
    weights: Tensor, sums: Tensor, products: Tensor, mixture: Mixture, limits: ClientLimits
) -> str | None:
    """Return the fault of a component's samples that are far likelier under another one, else None.

    With responsibilities r the log of weight times density under another component is above that under the own one by
    at most -log r. Over n samples, of which w belong to the component, r times that is at most w log(n / w).
    """
    fit, rounding = component_fits(weights, sums, products, mixture)
    expected = fit.diagonal()[:, None]
    entropy = weights * (limits.samples / weights.where(weights > 0, limits.samples)).log()
    slack = rounding + rounding.diagonal()[:, None] + ROUNDING * limits.samples
    wrong = ((fit - expected > entropy[:, None] + slack) & (weights > 0)[:, None]).nonzero()
    if not len(wrong):
        return None
    component, other = wrong[0].tolist()
    return f"tensor 'sums' holds for component {component} a sum of samples that belong to component {other}"


def component_fits(weights: Tensor, sums: Tensor, products: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return the log of weight times density of the samples of each component under each, (c, c), and its rounding.

    What is the same under all components is left out: with tied covariances, the samples' squares.
    """
    means = mixture.means.cpu()
    covariances = mixture.covariances.cpu()
    lower = torch.linalg.cholesky(covariances)
    precision = torch.cholesky_inverse(lower)
    scaled = (precision @ means[..., None])[..., 0]
    tied = mixture.shape == "tied"
    squares = torch.zeros(()) if tied else torch.einsum("aij,bij->ab", products, precision)
    log_volume = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    stretch = precision.diagonal(dim1=-2, dim2=-1).sum(-1)
    distances = squares - 2 * sums @ scaled.T + weights[:, None] * (scaled * means).sum(1)
    fit = weights[:, None] * (mixture.weights.cpu().log() - log_volume / 2) - distances / 2
    norms = squares_of(products).sum(-1)[..., None] + weights[:, None] * means.square().sum(1)
    return fit, SQUARES_ROUNDING * (stretch * norms + fit.abs())
