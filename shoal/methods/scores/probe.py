"""Linear probes: what a linear classifier makes of fixed features.

`linear_probe` is the judge everywhere: a convex problem solved to its end, so that what it says is of the features
alone. `sgd_probe_accuracy` is how papers train theirs; a fixed number of Adam's steps on features as they are ends far
from the optimum where features are small or differ in scale, and can rank models the wrong way round.

Shapes: n training and m test samples, d features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.methods.scores.logistic import LogisticFit, fit_logistic

STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 10.0, 100.0)
"""The values of C that are tried, from the strongest penalty on."""
CHOSEN_ON = 10_000
"""C is chosen on at most so many training features; all of them count in the fit that is judged."""
ROUGHLY = 1e-4
"""Tolerance of the fits that only choose C."""


@dataclass(frozen=True)
class Probe:
    """A linear probe and how it was fitted.

    Attributes:
        accuracy: on the test features.
        strength: C, as chosen on held-out training features.
        fit: of all training features, standardised.
    """

    accuracy: float
    strength: float
    fit: LogisticFit


def linear_probe(train_h: Tensor, train_y: Tensor, test_h: Tensor, test_y: Tensor, generator: torch.Generator) -> Probe:
    """Multinomial logistic regression on standardised features, fitted to convergence.

    Mean and deviation are the training features'. Of at most `CHOSEN_ON` of them, a seeded draw, a fifth is held out
    to choose C from `STRENGTHS` by the cross-entropy; then all training features are fitted with it.
    A fit whose gradient stays above the tolerance is reported by a warning.

    Args:
        train_h: (n, d) features.
        train_y: (n,) labels, any integers. A test label that never occurs here counts as wrong.
        test_h: (m, d).
        test_y: (m,).
        generator: on the CPU; draws what C is chosen on.

    Raises:
        ValueError: no training or no test samples, or features that are not finite.
    """
    some(train_h, test_h)
    if not (torch.isfinite(train_h).all() and torch.isfinite(test_h).all()):
        raise ValueError("the features hold NaN or infinite values: no linear classifier can be fitted to them")
    classes, y = train_y.unique(return_inverse=True)
    x = train_h.detach().double()
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    # Of a feature that never changes nothing can be learnt; rounding leaves its deviation near 0, not at it.
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
    found = classes[fit.scores((test_h.detach().double() - mean) / scale).argmax(1)]
    return Probe(float((found == test_y).double().mean()), strength, fit)


def _choose(x: Tensor, y: Tensor, classes: int, generator: torch.Generator) -> tuple[float, Tensor | None]:
    """C with the lowest cross-entropy on a held-out fifth, and the weights fitted with it on the rest.

    All values are tried: what is held out may be told less well under a weaker penalty, and better again under one that
    is weaker still, where the classes lie in directions of little variance.
    """
    order = torch.randperm(len(x), generator=generator)[:CHOSEN_ON].to(x.device)
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]
    if not len(held):
        return 1.0, None
    best: tuple[float, float, Tensor] | None = None
    start = None
    for strength in STRENGTHS:
        fit = fit_logistic(x[rest], y[rest], classes, strength, start, ROUGHLY)
        start = fit.weight
        loss = float(F.cross_entropy(fit.scores(x[held]), y[held]))
        if best is None or loss < best[0]:
            best = loss, strength, fit.weight
    assert best is not None
    return best[1:]


def sgd_probe_accuracy(
    train_h: Tensor,
    train_y: Tensor,
    test_h: Tensor,
    test_y: Tensor,
    generator: torch.Generator,
    *,
    epochs: int = 200,
    batch: int = 512,
    lr: float = 3e-3,
) -> float:
    """Test accuracy of a linear classifier after a fixed number of Adam's steps on features as they are.

    SSD's protocol; CF-CL's is 1,000 steps.

    Args:
        train_h: (n, d) features.
        train_y: (n,) labels, any integers. A test label that never occurs here counts as wrong.
        test_h: (m, d).
        test_y: (m,).
        generator: on the CPU; draws the order of the samples.
        epochs: passes over the training features.
        batch: samples per step.
        lr: learning rate.

    Raises:
        ValueError: no training or no test samples.
    """
    some(train_h, test_h)
    classes, train_y = train_y.unique(return_inverse=True)
    train_h, test_h = train_h.detach().float(), test_h.detach().float()
    # The loss is convex, so that zeros start it as well as any draw from the global generator.
    probe = nn.utils.skip_init(nn.Linear, train_h.shape[1], len(classes), device=train_h.device)
    nn.init.zeros_(probe.weight)
    nn.init.zeros_(probe.bias)
    optimiser = torch.optim.Adam(probe.parameters(), lr, fused=True)
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.randperm(len(train_h), generator=generator).to(train_h.device)
            for rows in order.split(batch):
                loss = F.cross_entropy(probe(train_h[rows]), train_y[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
    with torch.no_grad():
        return float((classes[probe(test_h).argmax(1)] == test_y).float().mean())


def some(train_h: Tensor, test_h: Tensor) -> None:
    """Refuse features of which one side is empty.

    Raises:
        ValueError: no training or no test samples.
    """
    if not len(train_h) or not len(test_h):
        raise ValueError(f"{len(train_h)} training and {len(test_h)} test features: at least one of each is needed")
