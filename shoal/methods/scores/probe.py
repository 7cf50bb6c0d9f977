"""The linear probe: the accuracy of a linear classifier on fixed features.

It solves a convex problem to convergence, so that its result depends on the features alone. A fixed number of Adam's
steps on unscaled features, as papers train, ends far from the optimum where features are small or differ in scale, and
can rank models the wrong way round.

Shapes: n training and m test samples, d features.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

STRENGTHS = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 10.0, 100.0)
"""Values of C that are tried, from the strongest penalty on."""
MAX_CHOICE_SAMPLES = 10_000
"""Training features on which C is chosen; the final fit uses all of them."""
TOLERANCE = 1e-6
"""The largest entry of the gradient of a converged fit."""
MAX_ITERATIONS = 5000
"""Iterations of a fit."""
MAX_PROBE_FEATURES = 256
"""Features of `probe_of`: of more the principal components are taken, so that its fit takes seconds."""


@dataclass(frozen=True)
class Probe:
    """A linear probe.

    Attributes:
        accuracy: on the test features.
        strength: C, chosen on held-out training features.
    """

    accuracy: float
    strength: float


def linear_probe(train_h: Tensor, train_y: Tensor, test_h: Tensor, test_y: Tensor, generator: torch.Generator) -> Probe:
    """Fit scikit-learn's logistic regression on standardised features to convergence, and return its test accuracy.

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
    x = train_h.detach().double().cpu()
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    # A constant feature is left out; rounding leaves its deviation near 0, not exactly at 0.
    scale = torch.where(deviation > 1e-9 * (1 + mean.abs()), deviation, torch.inf)
    standardised = ((x - mean) / scale).numpy()
    test = ((test_h.detach().double().cpu() - mean) / scale).numpy()
    y = train_y.cpu().numpy()
    # One thread: several add in another order, and weights then differ in their last bits.
    with threadpool_limits(1):
        strength = _choose(standardised, y, generator)
        predicted = _predict(standardised, y, test, strength)
    return Probe(float((predicted == test_y.cpu().numpy()).mean()), strength)


def probe_of(x: np.ndarray, learn: np.ndarray, held_out: np.ndarray, labels: np.ndarray, seed: int) -> float | None:
    """Return the accuracy of a linear probe on features, of many features on their principal components.

    Args:
        x: (n, d).
        learn, held: positions that the probe learns from and is tested on.
        labels: int (n,).
        seed: draws the features on which the penalty is chosen.

    Returns:
        None where nothing is to learn or to test, or features are not finite.
    """
    if not len(learn) or not len(held_out) or not np.isfinite(x).all():
        return None
    h = torch.from_numpy(x).double()
    if h.shape[1] > MAX_PROBE_FEATURES:
        h = h - h[learn].mean(0)
        _, _, directions = torch.linalg.svd(h[learn], full_matrices=False)
        h = h @ directions[:MAX_PROBE_FEATURES].T
    y = torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    return linear_probe(h[learn], y[learn], h[held_out], y[held_out], generator).accuracy


def _choose(x: np.ndarray, y: np.ndarray, generator: torch.Generator) -> float:
    """Return C with the lowest cross-entropy on a held-out fifth.

    All values are tried: the cross-entropy may rise with a weaker penalty and fall again with one that is weaker still,
    where the classes lie in directions of little variance.
    """
    from sklearn.linear_model import LogisticRegression  # here: it takes seconds to import, and not every worker judges

    order = torch.randperm(len(x), generator=generator)[:MAX_CHOICE_SAMPLES].numpy()
    held_out = order[: len(order) // 5]
    rest = order[len(order) // 5 :]
    held_out = held_out[np.isin(y[held_out], y[rest])]
    if not len(held_out) or len(np.unique(y[rest])) < 2:
        return 1.0
    model = LogisticRegression(tol=TOLERANCE, max_iter=MAX_ITERATIONS, warm_start=True)
    losses = []
    for strength in STRENGTHS:
        model.set_params(C=strength)
        _fit(model, x[rest], y[rest])
        columns = np.searchsorted(model.classes_, y[held_out])
        log_probability = model.predict_log_proba(x[held_out])
        losses.append(-log_probability[np.arange(len(held_out)), columns].mean())
    return STRENGTHS[int(np.argmin(losses))]


def _predict(x: np.ndarray, y: np.ndarray, test: np.ndarray, strength: float) -> np.ndarray:
    """Return the labels (m,) that a classifier of all training features gives the test features."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) < 2:
        return np.full(len(test), y[0])
    model = LogisticRegression(C=strength, tol=TOLERANCE, max_iter=MAX_ITERATIONS)
    _fit(model, x, y)
    labels: np.ndarray = model.predict(test)
    return labels


def _fit(model: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Fit a classifier; warn if it does not converge."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    if model.n_iter_.max() >= model.max_iter:
        warnings.warn(
            f"the linear probe has not converged after {model.max_iter} iterations: its accuracy is not that of the "
            "best linear classifier",
            stacklevel=2,
        )


def check_features(train_h: Tensor, test_h: Tensor) -> None:
    """Refuse an empty side.

    Raises:
        ValueError: no training or no test samples.
    """
    if not len(train_h) or not len(test_h):
        raise ValueError(f"{len(train_h)} training and {len(test_h)} test features: at least one of each is needed")
