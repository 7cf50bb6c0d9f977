"""Multinomial logistic regression, fitted until its gradient vanishes: the convex problem behind a linear probe.

The objective is that of scikit-learn's `LogisticRegression`: the mean cross-entropy plus |W|^2 / (2 C n), the
intercepts unpenalised. Newton's method in float64; each step solves its linear system by conjugate gradients, of which
every product with the Hessian costs two passes over the features (Lin, Weng, Keerthi 2008, without the trust region).

Shapes: n samples, d features, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-7
"""The largest entry of the gradient at which a fit is called converged."""
STEPS, PRODUCTS = 60, 250
"""At most so many Newton steps, and so many products with the Hessian in each."""


@dataclass(frozen=True)
class LogisticFit:
    """A fitted classifier.

    Attributes:
        weight: (d + 1, c), float64; the last row are the intercepts.
        loss: the objective.
        gradient: the largest entry of its gradient.
        tolerance: what `gradient` was to come below.
    """

    weight: Tensor
    loss: float
    gradient: float
    tolerance: float

    @property
    def converged(self) -> bool:
        """Whether the gradient came below the tolerance."""
        return self.gradient <= self.tolerance

    def scores(self, x: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d)."""
        return x.double() @ self.weight[:-1] + self.weight[-1]


def fit_logistic(
    x: Tensor, y: Tensor, classes: int, strength: float, start: Tensor | None = None, tolerance: float = TOLERANCE
) -> LogisticFit:
    """Fit a classifier.

    Args:
        x: features (n, d), best standardised: the penalty is the same for all of them.
        y: labels int64 (n,) in 0 .. c - 1.
        classes: c; a class may have no sample.
        strength: C, the inverse of the penalty's weight; larger is freer.
        start: weights (d + 1, c) to begin from, say of another C; zeros without.
        tolerance: the largest entry that the gradient may keep.
    """
    n = len(x)
    x = torch.cat((x.double(), x.new_ones(n, 1, dtype=torch.float64)), 1)
    truth = F.one_hot(y, classes).double()
    ridge = x.new_full((x.shape[1], 1), 1 / (strength * n))
    ridge[-1] = 0
    weight = x.new_zeros(x.shape[1], classes) if start is None else start.double().clone()
    logits = x @ weight
    loss = _objective(logits, truth, weight, ridge)
    for step in range(STEPS + 1):
        p = logits.softmax(1)
        gradient = x.T @ (p - truth) / n + ridge * weight
        largest = float(gradient.abs().max())
        if largest <= tolerance or step == STEPS:
            break
        direction = _newton_direction(x, p, gradient, ridge)
        moved, slope = x @ direction, float((gradient * direction).sum())
        length = 1.0
        while True:
            found = _objective(logits + length * moved, truth, weight + length * direction, ridge)
            if found <= loss + 1e-4 * length * slope or length < 1e-8:
                break
            length /= 2
        if length < 1e-8:  # rounding: nothing lower can be told apart
            break
        weight, logits, loss = weight + length * direction, logits + length * moved, found
    return LogisticFit(weight, loss, largest, tolerance)


def _objective(logits: Tensor, truth: Tensor, weight: Tensor, ridge: Tensor) -> float:
    fit = (logits.logsumexp(1) - (logits * truth).sum(1)).mean()
    return float(fit + 0.5 * (ridge * weight.square()).sum())


def _newton_direction(x: Tensor, p: Tensor, gradient: Tensor, ridge: Tensor) -> Tensor:
    """Minus the inverse Hessian times the gradient (d + 1, c), by preconditioned conjugate gradients.

    One matrix (d + 1, d + 1) preconditions all classes: the features' second moments, each sample weighted by how
    undecided the classifier is about it.
    """
    n = len(x)
    undecided = (p * (1 - p)).mean(1, keepdim=True)
    near = x.T @ (x * undecided) / n
    near.diagonal().add_(ridge.squeeze(1) + 1e-10 * near.diagonal().mean() + 1e-300)
    factor = torch.linalg.cholesky(near)

    def product(v: Tensor) -> Tensor:
        u = p * (x @ v)
        return x.T @ (u - p * u.sum(1, keepdim=True)) / n + ridge * v

    residual = -gradient
    size = float(residual.norm())
    goal = min(0.1, size**0.5) * size
    found, kept = torch.zeros_like(residual), torch.cholesky_solve(residual, factor)
    direction, energy = kept, float((residual * kept).sum())
    for _ in range(PRODUCTS):
        turned = product(direction)
        curvature = float((direction * turned).sum())
        if not curvature > 0:
            break
        length = energy / curvature
        found, residual = found + length * direction, residual - length * turned
        if float(residual.norm()) <= goal:
            break
        kept = torch.cholesky_solve(residual, factor)
        before, energy = energy, float((residual * kept).sum())
        direction = kept + energy / before * direction
    return found
