"""What a run has told of its clients in the sense of differential privacy, round by round.

Neighbours are two runs of which one has a client whose differences are all replaced by zero. Two things are accounted,
both by Renyi differential privacy of the Gaussian mechanism (Mironov 2017), with Opacus' accountant:

- `sent`: all messages of one client, for whoever reads them: noise multiplier z = `privacy.noise` in each round in
  which it took part.
- `mean`: the server states, for whoever sees them alone. The mean weighs client i by its number of samples n_i, so
  that a client moves it by at most clip n_i / N, while the noise of all adds up to z clip sqrt(sum n_i^2) / N: the
  multiplier of the round is z sqrt(sum n_i^2) / max n_i. Of other rules than the mean no more is claimed than what
  holds of whatever is computed from the messages: the multiplier z.

A round whose manifest is lost counts as one in which every client took part, and none hid another.

Nothing is counted in favour of clients that are drawn at random, so that both are upper bounds.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(order) for order in range(11, 64)] + [128.0, 256.0, 512.0, 1024.0]
"""Renyi orders among which the best one is taken."""


@dataclass(frozen=True)
class Spent:
    """Epsilon at the run's delta: of one client's messages, and of the server states."""

    sent: float
    mean: float


@dataclass
class Ledger:
    """What was told so far.

    Args:
        noise: multiplier of a client's noise, `privacy.noise`.
        delta: at which epsilon is said.
        averaged: whether the server takes the plain weighted mean.
    """

    noise: float
    delta: float
    averaged: bool = True
    _rounds: Counter[int] = field(default_factory=Counter)
    """Rounds in which each client took part."""
    _unknown: int = 0
    """Rounds of which nothing is known."""
    _mean: np.ndarray = field(default_factory=lambda: np.zeros(len(ORDERS)))

    def add(self, clients: Sequence[int], sizes: Sequence[int]) -> None:
        """Account a round: who took part, and how many samples each has."""
        self._rounds.update(clients)
        self._mean = self._mean + self._told(multiplier(self.noise, sizes) if self.averaged else self.noise, 1)

    def add_unknown(self) -> None:
        """Account a round of which nothing is known any more, at its worst."""
        self._unknown += 1
        self._mean = self._mean + self._told(self.noise, 1)

    def after(self, clients: Sequence[int], sizes: Sequence[int]) -> Spent:
        """What would be spent after one more round; this ledger stays as it is."""
        ahead = replace(self, _rounds=Counter(self._rounds))
        ahead.add(clients, sizes)
        return ahead.spent()

    def spent(self) -> Spent:
        """What is spent so far; nothing before the first round."""
        most = max(self._rounds.values(), default=0) + self._unknown
        if not most:
            return Spent(0.0, 0.0)
        sent = self._epsilon(self._told(self.noise, most))
        return Spent(sent, min(sent, self._epsilon(self._mean)))  # states are made of nothing but the messages

    def _told(self, noise: float, rounds: int) -> np.ndarray:
        # Here: it takes seconds to import.
        from opacus.accountants.analysis.rdp import compute_rdp  # type: ignore[import-untyped]

        if not noise:
            return np.full(len(ORDERS), math.inf)
        told: np.ndarray = compute_rdp(q=1.0, noise_multiplier=noise, steps=rounds, orders=ORDERS)
        return told

    def _epsilon(self, told: np.ndarray) -> float:
        from opacus.accountants.analysis.rdp import get_privacy_spent

        if not np.isfinite(told).any():
            return math.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the best order may be the first or last: epsilon is a bound all the same
            return float(get_privacy_spent(orders=ORDERS, rdp=told, delta=self.delta)[0])


def multiplier(noise: float, sizes: Iterable[int]) -> float:
    """The noise multiplier of a weighted mean to which each client adds noise of its own.

    >>> multiplier(2.0, [5, 5, 5, 5])
    4.0
    """
    weights = np.array(list(sizes), dtype=float)
    return float(noise * np.sqrt(np.square(weights).sum()) / weights.max())
