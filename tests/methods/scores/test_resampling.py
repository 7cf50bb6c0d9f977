"""Intervals of the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core.streams import Streams
from shoal.methods.scores.resampling import bootstrap_interval


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(0).normal(2.0, 3.0, 900)
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 900, 0.95, np.random.default_rng(1), 4000)
    deviation = 1.96 * values.std() / 30
    assert low == pytest.approx(values.mean() - deviation, abs=0.02)
    assert high == pytest.approx(values.mean() + deviation, abs=0.02)


def test_the_same_stream_gives_the_same_interval() -> None:
    values = np.arange(50.0)
    found = [
        bootstrap_interval(lambda rows: float(values[rows].mean()), 50, 0.9, Streams(seed).numpy("held out"))
        for seed in (3, 3, 4)
    ]
    assert found[0] == found[1] != found[2]
