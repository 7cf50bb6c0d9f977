"""Drift of cluster shares: seldom where there is none, and seen where there is some."""

from __future__ import annotations

import numpy as np

from shoal.methods.scores.drift import share_drift


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


def test_disjoint_shares_have_distance_one_and_equal_shares_none() -> None:
    rng = np.random.default_rng(0)
    assert share_drift(np.zeros(9, int), np.ones(9, int), 2, 0.05, rng)[0] == 1
    assert share_drift(np.zeros(9, int), np.zeros(9, int), 2, 0.05, rng) == (0, 0)
