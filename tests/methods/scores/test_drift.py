"""Drift of cluster shares and of uniformity: seldom where there is none, and seen where there is some."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.methods.scores.drift import share_drift, uniformity_drift
from shoal.methods.scores.representation import uniformity


def test_the_distance_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])
    middle = (p + q) / 2
    entropy = [-(each[each > 0] * np.log2(each[each > 0])).sum() for each in (middle, p, q)]
    distance, _ = share_drift(np.array([0, 1]), np.array([1, 2]), 3, 0.05, rng)
    assert distance == pytest.approx((entropy[0] - (entropy[1] + entropy[2]) / 2) ** 0.5)
    same, threshold = share_drift(np.arange(7), np.arange(7), 7, 0.05, rng)
    assert same == 0.0 < threshold


def test_shares_of_one_source_drift_as_seldom_as_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    alarms = 0
    for _ in range(200):
        old, new = (rng.choice(4, count, p=shares) for count in (300, 60))
        distance, threshold = share_drift(old, new, 4, 0.05, rng)
        alarms += distance > threshold
    assert 1 <= alarms <= 22  # 10 expected; each bound is passed once in more than 1,000 trials
    flooded = np.concatenate([rng.choice(4, 60, p=shares), np.full(40, 3)])
    distance, threshold = share_drift(rng.choice(4, 300, p=shares), flooded, 4, 0.001, rng)
    assert distance > threshold


def test_uniformity_of_one_source_lies_within_its_bounds_and_of_one_point_does_not() -> None:
    rng = np.random.default_rng(1)
    old = rng.normal(size=(200, 8))
    alarms = 0
    for _ in range(60):
        before, after, (low, high) = uniformity_drift(old, rng.normal(size=(40, 8)), 0.05, rng)
        alarms += not low <= after <= high
    assert alarms <= 9  # 3 expected
    assert before == pytest.approx(uniformity(torch.from_numpy(old)), abs=1e-6)
    _, after, (low, _) = uniformity_drift(old, np.ones((40, 8)) + 0.1 * rng.normal(size=(40, 8)), 0.01, rng)
    assert after < low
