"""Multinomial logistic regression, fitted until its gradient vanishes: the convex problem behind a linear probe.

The objective is that of scikit-learn's `LogisticRegression`: the mean cross-entropy plus |W|^2 / (2 C n), the
intercepts unpenalised. It is solved by Newton's method in float64; each step solves its linear system by conjugate
gradients, where a product with the Hessian costs two passes over the features (Lin, Weng, Keerthi 2008, without the
trust region).

Shapes: n samples, d features, c classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-7
"""The largest entry of the gradient of a converged fit."""
MAX_STEPS = 60
"""Newton steps of a fit."""
MAX_PRODUCTS = 250
"""Products with the Hessian in one Newton step."""


@dataclass(frozen=True)
class LogisticFit:
    """A fitted classifier.

    Attributes:
        weight: (d + 1, c), float64; the last row are the intercepts.
        loss: the objective.
        gradient: the largest entry of its gradient.
        tolerance: the bound that `gradient` was to reach.
    """

    weight: Tensor
    loss: float
    gradient: float
    tolerance: float

    @property
    def converged(self) -> bool:
        """Whether the gradient reached the tolerance."""
        return self.gradient <= self.tolerance

    def scores(self, x: Tensor) -> Tensor:
        """Return logits (n, c) of features (n, d)."""
        return x.double() @ self.weight[:-1] + self.weight[-1]


def fit_logistic(
    x: Tensor, y: Tensor, classes: int, strength: float, start: Tensor | None = None, tolerance: float = TOLERANCE
) -> LogisticFit:
    """Fit a classifier.

    Args:
        x: features (n, d), preferably standardised: the penalty is the same for all of them.
        y: labels int64 (n,) in 0 .. c - 1.
        classes: c; a class may have no sample.
        strength: C, the inverse of the penalty's weight; a larger C penalises less.
        start: initial weights (d + 1, c), such as those for another C; None: zeros.
        tolerance: the largest entry of the gradient at the end.
    """
    n = len(x)
    x = torch.cat((x.double(), x.new_ones(n, 1, dtype=torch.float64)), 1)
    truth = F.one_hot(y, classes).double()
    ridge = x.new_full((x.shape[1], 1), 1 / (strength * n))
    ridge[-1] = 0
    weight = x.new_zeros(x.shape[1], classes) if start is None else start.double().clone()
    logits = x @ weight
    loss = _objective(logits, truth, weight, ridge)
    for step in range(MAX_STEPS + 1):
        p = logits.softmax(1)
        gradient = x.T @ (p - truth) / n + ridge * weight
        largest = float(gradient.abs().max())
        if largest <= tolerance or step == MAX_STEPS:
            break
        direction = _newton_direction(x, p, gradient, ridge)
        moved = x @ direction
        slope = float((gradient * direction).sum())
        length = 1.0
        while True:
            lower = _objective(logits + length * moved, truth, weight + length * direction, ridge)
            if lower <= loss + 1e-4 * length * slope or length < 1e-8:
                break
            length /= 2
        if length < 1e-8:  # rounding hides any lower value
            break
        weight = weight + length * direction
        logits = logits + length * moved
        loss = lower
    return LogisticFit(weight, loss, largest, tolerance)


def _objective(logits: Tensor, truth: Tensor, weight: Tensor, ridge: Tensor) -> float:
    fit = (logits.logsumexp(1) - (logits * truth).sum(1)).mean()
    return float(fit + 0.5 * (ridge * weight.square()).sum())


def _newton_direction(x: Tensor, p: Tensor, gradient: Tensor, ridge: Tensor) -> Tensor:
    """Return minus the inverse Hessian times the gradient (d + 1, c), by preconditioned conjugate gradients.

    One matrix (d + 1, d + 1) preconditions all classes: the features' second moments, with each sample weighted by the
    classifier's uncertainty about it.
    """
    n = len(x)
    uncertainty = (p * (1 - p)).mean(1, keepdim=True)
    preconditioner = x.T @ (x * uncertainty) / n
    preconditioner.diagonal().add_(ridge.squeeze(1) + 1e-10 * preconditioner.diagonal().mean() + 1e-300)
    factor = torch.linalg.cholesky(preconditioner)

    def product(v: Tensor) -> Tensor:
        u = p * (x @ v)
        return x.T @ (u - p * u.sum(1, keepdim=True)) / n + ridge * v

    residual = -gradient
    size = float(residual.norm())
    goal = min(0.1, size**0.5) * size
    solution = torch.zeros_like(residual)
    scaled = torch.cholesky_solve(residual, factor)
    direction = scaled
    energy = float((residual * scaled).sum())
    for _ in range(MAX_PRODUCTS):
        image = product(direction)
        curvature = float((direction * image).sum())
        if not curvature > 0:
            break
        length = energy / curvature
        solution = solution + length * direction
        residual = residual - length * image
        if float(residual.norm()) <= goal:
            break
        scaled = torch.cholesky_solve(residual, factor)
        before = energy
        energy = float((residual * scaled).sum())
        direction = scaled + energy / before * direction
    return solution
