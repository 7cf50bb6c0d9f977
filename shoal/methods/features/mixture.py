"""Steps of EM for a mixture of Gaussians whose sufficient statistics add up over clients (Dempster et al. 1977).

Symbols in shapes: n samples, k dimensions, c components.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.clustering.federated_k_means import nearest, row_blocks
from shoal.methods.contract.message import Tensors

Shape = Literal["full", "tied"]
"""Of the covariances: one matrix a component, or one matrix for all."""
REGULARISATION = 1e-6
"""Added to every variance, as in scikit-learn; no variance is below it."""


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians, float64.

    Attributes:
        weights: (c,), which sum to 1.
        means: (c, k).
        covariances: (c, k, k) or (k, k), by shape.
        shape: of the covariances.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor
    shape: Shape

    def log_density(self, z: Tensor) -> Tensor:
        """Return the log of weight times density (n, c) of vectors z (n, k), float64."""
        lower = torch.linalg.cholesky(self.covariances).expand(len(self.means), *self.covariances.shape[-2:])
        columns = [
            torch.linalg.solve_triangular(factor, (z - mean).T, upper=False).square().sum(0)
            for factor, mean in zip(lower, self.means, strict=True)
        ]
        squares = torch.stack(columns, 1)
        log_volume = 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = z.shape[1] * math.log(2 * math.pi)
        density: Tensor = self.weights.log() - (squares + log_volume + constant) / 2
        return density

    def responsibilities(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of each component (n, c) and the log-likelihood (n,) of vectors z (n, k)."""
        joint = self.log_density(z.double())
        likelihood = joint.logsumexp(1)
        return (joint - likelihood[:, None]).exp(), likelihood


def expected_sums(
    z: Tensor | Iterable[Tensor], mixture: Mixture | None, centres: Tensor, shape: Shape, *, min_points: int
) -> dict[str, Tensor]:
    """Return one client's sufficient statistics: `weights` (c,), `sums` (c, k), `products` by shape, `likelihood`.

    Args:
        z: vectors (n, k), or blocks of them, float64.
        mixture: gives the responsibilities; None: each vector belongs to its nearest centre.
        centres: (c, k), float64.
        shape: of the covariances.
        min_points: components in which the client's vectors weigh less are left out, as their mean would tell about
            single vectors, with what they add to all four.
    """
    clusters, width = centres.shape
    weights = centres.new_zeros(clusters)
    sums = centres.new_zeros(clusters, width)
    products = centres.new_zeros(clusters, width, width)
    likelihood = centres.new_zeros(())
    by_component = centres.new_zeros(clusters)
    for part in row_blocks(z):
        if mixture is None:
            share = F.one_hot(nearest(part, centres[None])[0][0], clusters).double()
        else:
            share, of_rows = mixture.responsibilities(part)
            likelihood += of_rows.sum()
            by_component += share.T @ of_rows
        weights += share.sum(0)
        sums += share.T @ part
        products += torch.stack([(part * column[:, None]).T @ part for column in share.T])
    few = weights < min_points
    products[few] = 0
    return {
        "weights": weights.masked_fill(few, 0),
        "sums": sums.masked_fill(few[:, None], 0),
        "products": products.sum(0) if shape == "tied" else products,
        "likelihood": likelihood - by_component[few].sum(),
    }


def maximised(total: Tensors, before: Tensor, shape: Shape, least: float = 0.0) -> Mixture:
    """Return the mixture that the sums of all clients' statistics make most likely.

    Args:
        total: sums of `expected_sums`.
        before: means (c, k) that a component of no weight keeps.
        shape: of the covariances.
        least: no variance is below it.
    """
    weights = total["weights"]
    present = weights > 0
    counts = weights.where(present, torch.ones_like(weights))
    means = torch.where(present[:, None], total["sums"] / counts[:, None], before)
    shares = (counts * present + 10 * torch.finfo(torch.float64).eps) / weights.sum()
    if shape == "tied":
        outer = (weights[:, None] * means).T @ means
        covariances = _positive((total["products"] - outer) / weights.sum(), least)
    else:
        outer = means[:, :, None] * means[:, None, :]
        matrices = total["products"] / counts[:, None, None] - outer
        matrices = torch.where(present[:, None, None], matrices, matrices[present].mean(0))
        covariances = _positive(matrices, least)
    return Mixture(shares / shares.sum(), means, covariances, shape)


def product_shape(shape: Shape, clusters: int, width: int) -> tuple[int, ...]:
    """Return the shape of the sums of products of columns."""
    return (width, width) if shape == "tied" else (clusters, width, width)


def _positive(matrices: Tensor, least: float) -> Tensor:
    """Return symmetric matrices (..., k, k) whose eigenvalues are not below a bound, the regularisation added."""
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    floored = values.clamp_min(least) + REGULARISATION
    positive: Tensor = (vectors * floored[..., None, :]) @ vectors.mT
    return positive
