"""The linear probe: the accuracy of a linear classifier on fixed features.

It solves a convex problem to convergence, so that its result depends on the features alone. A fixed number of Adam's
steps on unscaled features, as papers train, ends far from the optimum where features are small or differ in scale, and
can rank models the wrong way round.

Shapes: n training and m test samples, d features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.methods.scores.logistic import LogisticFit, fit_logistic

STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 10.0, 100.0)
"""Values of C that are tried, from the strongest penalty on."""
MAX_CHOICE_SAMPLES = 10_000
"""Training features on which C is chosen; the final fit uses all of them."""
CHOICE_TOLERANCE = 1e-4
"""Tolerance of the fits that choose C."""


@dataclass(frozen=True)
class Probe:
    """A linear probe and its fit.

    Attributes:
        accuracy: on the test features.
        strength: C, chosen on held-out training features.
        fit: of all training features, standardised.
    """

    accuracy: float
    strength: float
    fit: LogisticFit


def linear_probe(train_h: Tensor, train_y: Tensor, test_h: Tensor, test_y: Tensor, generator: torch.Generator) -> Probe:
    """Fit multinomial logistic regression on standardised features to convergence, and return its test accuracy.

    Mean and deviation are those of the training features. A fifth of at most `MAX_CHOICE_SAMPLES` of them, a seeded
    draw, is held out to choose C from `STRENGTHS` by the cross-entropy; then all training features are fitted with it.
    A fit whose gradient stays above the tolerance causes a warning.

    Args:
        train_h: (n, d) features.
        train_y: (n,) labels, any integers. A test label that never occurs here counts as wrong.
        test_h: (m, d).
        test_y: (m,).
        generator: on the CPU; draws the features on which C is chosen.

    Raises:
        ValueError: no training or no test samples, or features that are not finite.
    """
    check_features(train_h, test_h)
    if not (torch.isfinite(train_h).all() and torch.isfinite(test_h).all()):
        raise ValueError("the features hold NaN or infinite values: no linear classifier can be fitted to them")
    classes, y = train_y.unique(return_inverse=True)
    x = train_h.detach().double()
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    # A constant feature is left out; rounding leaves its deviation near 0, not exactly at 0.
    scale = torch.where(deviation > 1e-9 * (1 + mean.abs()), deviation, torch.inf)
    x = (x - mean) / scale
    strength, start = _choose(x, y, len(classes), generator)
    fit = fit_logistic(x, y, len(classes), strength, start)
    if not fit.converged:
        warnings.warn(
            f"the linear probe has not converged: the largest entry of its gradient is {fit.gradient:.1e}, and should "
            f"be at most {fit.tolerance:.0e}; its accuracy is not that of the best linear classifier",
            stacklevel=2,
        )
    predicted = classes[fit.scores((test_h.detach().double() - mean) / scale).argmax(1)]
    return Probe(float((predicted == test_y).double().mean()), strength, fit)


def _choose(x: Tensor, y: Tensor, classes: int, generator: torch.Generator) -> tuple[float, Tensor | None]:
    """Return C with the lowest cross-entropy on a held-out fifth, and the weights fitted with it on the rest.

    All values are tried: the cross-entropy may rise with a weaker penalty and fall again with one that is weaker still,
    where the classes lie in directions of little variance.
    """
    order = torch.randperm(len(x), generator=generator)[:MAX_CHOICE_SAMPLES].to(x.device)
    held_out = order[: len(order) // 5]
    rest = order[len(order) // 5 :]
    if not len(held_out):
        return 1.0, None
    best: tuple[float, float, Tensor] | None = None
    start = None
    for strength in STRENGTHS:
        fit = fit_logistic(x[rest], y[rest], classes, strength, start, CHOICE_TOLERANCE)
        start = fit.weight
        loss = float(F.cross_entropy(fit.scores(x[held_out]), y[held_out]))
        if best is None or loss < best[0]:
            best = (loss, strength, fit.weight)
    assert best is not None
    return best[1:]


def check_features(train_h: Tensor, test_h: Tensor) -> None:
    """Refuse an empty side.

    Raises:
        ValueError: no training or no test samples.
    """
    if not len(train_h) or not len(test_h):
        raise ValueError(f"{len(train_h)} training and {len(test_h)} test features: at least one of each is needed")
