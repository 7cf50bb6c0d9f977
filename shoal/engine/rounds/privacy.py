"""Differential privacy of a run: epsilon of the messages of a client, and of the server states.

Two runs are neighbours if all differences of one client are zero in one of them. Two quantities are accounted, both
by Renyi differential privacy of the Gaussian mechanism (Mironov 2017), with Opacus' conversion to epsilon:

- `sent`: all messages of one client, to a reader of all of them: noise multiplier z = `privacy.noise` for each update
  that the client was asked for. A client that was asked twice in a round, because its first answer was lost or damaged,
  counts twice: the answers have different noise, and a reader may have seen both.
- `mean`: the server states, to a reader who sees nothing else. The mean weighs client i by its number of samples n_i:
  a client moves it by at most clip n_i / N, and the noise of all clients adds up to z clip sqrt(sum n_i^2) / N. So the
  multiplier of the round is z sqrt(sum n_i^2) / max n_i. For rules other than the mean it is z, which holds for
  anything that is computed from the messages.

A Gaussian mechanism of multiplier z has the Renyi curve a / (2 z^2) over the order a. The curves of several mechanisms
add up, also over runs with different noise, so that the sum of 1 / (2 z^2), here called rho, is enough.

Random sampling of clients is not counted in favour of privacy, so that both quantities are upper bounds.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.methods.contract.declared import MAX_INT64

ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(order) for order in range(11, 64)] + [128.0, 256.0, 512.0, 1024.0]
"""Renyi orders from which the best is chosen."""

MAX_RHO = 1e100
"""Largest rho in an entry of a ledger."""


@dataclass(frozen=True)
class Spent:
    """Epsilon at one delta: of one client's messages, and of the server states."""

    sent: float
    mean: float


@dataclass
class Ledger:
    """The entry of one run.

    Args:
        noise: multiplier of a client's noise, `privacy.noise`; 0: updates are not hidden.
        averaged: whether the server computes the plain weighted mean.
        asked: number of private updates that each client was asked for.
        states: rho of each server state.
    """

    noise: float
    averaged: bool = True
    asked: dict[int, int] = field(default_factory=dict)
    states: dict[str, float] = field(default_factory=dict)

    def ask(self, clients: Iterable[int]) -> None:
        """Account for an update of each of these clients."""
        self.asked = Counter(self.asked) + Counter(clients)

    def release(self, state: str, sizes: Sequence[int]) -> None:
        """Account for a server state; a state counts once, however often it is released.

        Args:
            state: name of the state: the same for the same round and messages.
            sizes: number of samples of each client whose message is in it.
        """
        noise = self.noise
        if self.averaged:
            noise = multiplier(noise, sizes)
        self.states[state] = rho(noise)

    def add(self, clients: Sequence[int], sizes: Sequence[int]) -> None:
        """Account for a round with these clients and their numbers of samples."""
        self.ask(clients)
        self.release(f"{len(self.states) + 1}", sizes)

    def after(self, clients: Sequence[int], sizes: Sequence[int]) -> Ledger:
        """Return what the ledger would be after one more round; this one stays as it is."""
        later = self.copy()
        later.add(clients, sizes)
        return later

    def copy(self) -> Ledger:
        """Return an independent copy."""
        return replace(self, states=dict(self.states))

    @property
    def rho_sent(self) -> float:
        """Rho of the messages of the client that was asked most often."""
        updates = max(self.asked.values(), default=0)
        return updates * rho(self.noise) if updates else 0.0  # rho may be infinite

    @property
    def rho_mean(self) -> float:
        """Rho of the server states: at most that of the messages, from which the states are computed."""
        return min(self.rho_sent, math.fsum(self.states.values()))

    def spent(self, delta: float) -> Spent:
        """Return epsilon so far, for a delta; 0 before the first round."""
        return Spent(epsilon(self.rho_sent, delta), epsilon(self.rho_mean, delta))

    @property
    def is_possible(self) -> bool:
        """Whether a run can have all these numbers."""
        losses = all(0 < number <= MAX_RHO for number in (self.noise, *self.states.values()))
        return losses and all(0 <= count <= MAX_INT64 for count in self.asked.values())


def rho(noise: float) -> float:
    """Return 1 / (2 z^2) of a noise multiplier z; infinite without noise."""
    square = noise**2
    return 1 / (2 * square) if square else math.inf


def epsilon(total: float, delta: float) -> float:
    """Return epsilon of a sum of rho for a delta: 0 without any release, infinite for a release without noise."""
    if not total:
        return 0.0
    if not math.isfinite(total):
        return math.inf
    # Imported here, since it takes seconds.
    from opacus.accountants.analysis.rdp import get_privacy_spent  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the first or last: epsilon is a bound all the same
        return float(get_privacy_spent(orders=ORDERS, rdp=total * np.array(ORDERS), delta=delta)[0])


def multiplier(noise: float, sizes: Iterable[int]) -> float:
    """Return the noise multiplier of a weighted mean to which each client adds its own noise.

    >>> multiplier(2.0, [5, 5, 5, 5])
    4.0
    """
    weights = np.array(list(sizes), dtype=float)
    return float(noise * np.sqrt(np.square(weights).sum()) / weights.max())
