"""FedDecorr's term, which keeps the dimensions of features from collapsing (Shi et al. 2023, arXiv 2210.00226, eq. 7).

Shapes: n samples, d dimensions of features.
"""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-8
"""Added to variances, so that a constant dimension has no infinite value."""


AUTHORS_ROWS = 64
"""Rows of a batch for which the authors chose their weight, 0.1."""


def decorrelation(h: Tensor) -> Tensor:
    """Return the mean square of the correlations of different dimensions, times (n - 1)^2 / n as the authors scale it.

    With H the columns of h, centred and divided by their deviation, it is the mean over i != j of (H^T H)_ij^2 / n.

    Args:
        h: features (n, d), n and d at least 2.

    >>> decorrelation(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    tensor(0.5000)
    """
    n, d = h.shape
    centred = h - h.mean(0, keepdim=True)
    columns = centred / (centred.square().sum(0, keepdim=True) / (n - 1) + EPSILON).sqrt()
    products = (columns.T @ columns).square()
    others = products.sum() - products.diagonal().sum()
    return others / (d * (d - 1)) / n


def decorrelation_term(h: Tensor) -> Tensor:
    """Return `decorrelation` as large as it is in a batch of `AUTHORS_ROWS` rows with the same correlations.

    The value of the authors' code grows with the number of rows. Without this, their weight of 0.1 would mean four
    times as much for two views of 128 samples.

    Args:
        h: features (n, d), n and d at least 2.
    """
    return decorrelation(h) * (AUTHORS_ROWS / len(h))
