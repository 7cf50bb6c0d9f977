"""Epsilon against a numerical integration of the Gaussian mechanism that knows nothing of Renyi orders."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from shoal.engine.rounds.privacy import Ledger, Spent, multiplier


def exact(noise: float, rounds: int, delta: float) -> float:
    """The least epsilon of `rounds` Gaussian mechanisms: their sum is one with sensitivity sqrt(rounds).

    Balle and Wang 2018, theorem 8: delta(eps) = Phi(s/2 - eps/s) - e^eps Phi(-s/2 - eps/s), s = sqrt(rounds) / noise.
    """
    s = math.sqrt(rounds) / noise

    def excess(eps: float) -> float:
        return float(norm.cdf(s / 2 - eps / s) - math.exp(eps) * norm.cdf(-s / 2 - eps / s)) - delta

    return float(brentq(excess, 1e-6, 500))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (8.0, 100), (0.7, 3)])
def test_epsilon_bounds_the_exact_one_closely(noise: float, rounds: int) -> None:
    ledger = Ledger(noise)
    for _ in range(rounds):
        ledger.add([0], [10])
    spent = ledger.spent(1e-5)
    assert spent.sent == pytest.approx(spent.mean)
    exact_epsilon = exact(noise, rounds, 1e-5)
    assert exact_epsilon <= spent.sent <= 1.15 * exact_epsilon


def test_many_clients_hide_each_other_in_the_mean() -> None:
    """Sixteen alike are as good as four times the noise; the messages themselves tell what they told."""
    many = Ledger(1.0)
    many.add(range(16), [10] * 16)
    four = Ledger(4.0)
    four.add([0], [10])
    assert many.spent(1e-5).mean == pytest.approx(four.spent(1e-5).mean)
    assert many.spent(1e-5).sent > 3 * many.spent(1e-5).mean
    assert multiplier(1.0, [30, 10, 10]) == pytest.approx(math.sqrt(1100) / 30)


def test_the_client_that_took_part_most_counts() -> None:
    ledger, one = Ledger(2.0), Ledger(2.0)
    for clients in ([0, 1], [1, 2], [2, 1]):
        ledger.add(clients, [5, 5])
    for _ in range(3):
        one.add([1], [5])
    assert ledger.spent(1e-5).sent == one.spent(1e-5).sent


def test_looking_ahead_spends_nothing() -> None:
    ledger = Ledger(1.0)
    assert ledger.spent(1e-5) == Spent(0.0, 0.0)
    foreseen = ledger.after([0, 1], [5, 5]).spent(1e-5)
    assert ledger.spent(1e-5) == Spent(0.0, 0.0)
    ledger.add([0, 1], [5, 5])
    assert ledger.spent(1e-5) == foreseen
    assert ledger.after([0, 1], [5, 5]).spent(1e-5).sent > foreseen.sent


def test_without_noise_everything_may_be_told() -> None:
    ledger = Ledger(0.0)
    ledger.add([0], [5])
    assert np.isinf(ledger.spent(1e-5).sent)
    assert np.isinf(ledger.spent(1e-5).mean)


def test_of_the_states_no_more_is_told_than_of_the_messages() -> None:
    """Ten clients, each in one round of its own: no state tells more of any of them than its message."""
    ledger = Ledger(1.0)
    for client in range(10):
        ledger.add([client], [5])
    assert ledger.spent(1e-5).mean == ledger.spent(1e-5).sent
