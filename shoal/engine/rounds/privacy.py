"""What a run has told of its clients in the sense of differential privacy, update by update and state by state.

Neighbours are two runs of which one has a client whose differences are all replaced by zero. Two things are accounted,
both by Renyi differential privacy of the Gaussian mechanism (Mironov 2017), with Opacus' conversion to epsilon:

- `sent`: all messages of one client, for whoever reads them: noise multiplier z = `privacy.noise` for each update that
  it was asked for. One that was asked twice in a round, since its first answer was lost or damaged, counts twice: the
  two answers have different noise, and somebody may have seen both.
- `mean`: the server states, for whoever sees them alone. The mean weighs client i by its number of samples n_i, so
  that a client moves it by at most clip n_i / N, while the noise of all adds up to z clip sqrt(sum n_i^2) / N: the
  multiplier of the round is z sqrt(sum n_i^2) / max n_i. Of other rules than the mean no more is claimed than what
  holds of whatever is computed from the messages: the multiplier z.

A Gaussian mechanism of multiplier z has the Renyi curve a / (2 z^2) over the order a. Curves of several add up, also
those of several runs with different noise, so that the sum of 1 / (2 z^2), here called rho, says all.

Nothing is counted in favour of clients that are drawn at random, so that both are upper bounds.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.methods.contract.declared import MAX_INT64, short

ORDERS = [1 + x / 10 for x in range(1, 100)] + [float(order) for order in range(11, 64)] + [128.0, 256.0, 512.0, 1024.0]
"""Renyi orders among which the best one is taken."""

MAX_RHO = 1e100
"""More than this is no entry of a ledger."""


@dataclass(frozen=True)
class Spent:
    """Epsilon at one delta: of one client's messages, and of the server states."""

    sent: float
    mean: float


@dataclass
class Ledger:
    """What one run told so far.

    Args:
        noise: multiplier of a client's noise, `privacy.noise`; 0 where nothing hides an update.
        delta: at which epsilon is said.
        averaged: whether the server takes the plain weighted mean.
        asked: how many private updates each client was asked for.
        states: rho of each server state that was made.
        unknown: rounds of which nothing is known.
    """

    noise: float
    delta: float
    averaged: bool = True
    asked: Counter[int] = field(default_factory=Counter)
    states: dict[str, float] = field(default_factory=dict)
    unknown: int = 0

    def ask(self, clients: Iterable[int]) -> None:
        """Account an update of each of these clients."""
        self.asked.update(clients)

    def release(self, state: str, sizes: Sequence[int]) -> None:
        """Account a server state that is the mean of updates; once, however often it is said.

        Args:
            state: names the state: the same name for the same round and messages.
            sizes: how many samples each client has whose message is in it.
        """
        self.states[state] = rho(multiplier(self.noise, sizes) if self.averaged else self.noise)

    def add(self, clients: Sequence[int], sizes: Sequence[int]) -> None:
        """Account a round: who took part, and how many samples each has."""
        self.ask(clients)
        self.release(f"{len(self.states) + 1}", sizes)

    def add_unknown(self) -> None:
        """Account a round of which nothing is known any more, at its worst: every client, and none hides another."""
        self.unknown += 1

    def after(self, clients: Sequence[int], sizes: Sequence[int]) -> Ledger:
        """Return what the ledger would be after one more round; this one stays as it is."""
        ahead = self.copy()
        ahead.add(clients, sizes)
        return ahead

    def copy(self) -> Ledger:
        """Return a ledger of its own with the same entries."""
        return replace(self, asked=Counter(self.asked), states=dict(self.states))

    @property
    def rho_sent(self) -> float:
        """Rho of the messages of the client that was asked most often."""
        updates = max(self.asked.values(), default=0) + self.unknown
        return updates * rho(self.noise) if updates else 0.0

    @property
    def rho_mean(self) -> float:
        """Rho of the server states: never more than that of the messages, of which states are made."""
        unknown = self.unknown * rho(self.noise) if self.unknown else 0.0
        return min(self.rho_sent, math.fsum((*self.states.values(), unknown)))

    def spent(self) -> Spent:
        """Return epsilon so far; nothing before the first round."""
        return Spent(epsilon(self.rho_sent, self.delta), epsilon(self.rho_mean, self.delta))

    def to_json(self) -> dict[str, Any]:
        """Return the entries as JSON; without delta, at which they can be read at any time."""
        return {
            "noise": self.noise,
            "averaged": self.averaged,
            "asked": {str(client): count for client, count in sorted(self.asked.items())},
            "states": dict(sorted(self.states.items())),
            "unknown": self.unknown,
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any], delta: float) -> Ledger:
        """Read entries back.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: they are no entries of a ledger.
        """
        asked = Counter({int(client): _count(count) for client, count in plain["asked"].items()})
        states = {str(state): _rho(value) for state, value in plain["states"].items()}
        return cls(_rho(plain["noise"]), delta, bool(plain["averaged"]), asked, states, _count(plain["unknown"]))


def rho(noise: float) -> float:
    """Return 1 / (2 z^2) of a noise multiplier z; infinite where there is no noise."""
    square = noise**2
    return 1 / (2 * square) if square else math.inf


def epsilon(total: float, delta: float) -> float:
    """Return epsilon of a sum of rho at a delta: 0 where nothing was told, infinite where nothing was hidden."""
    if not total:
        return 0.0
    if not math.isfinite(total):
        return math.inf
    # Here: it takes seconds to import.
    from opacus.accountants.analysis.rdp import get_privacy_spent  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the first or last: epsilon is a bound all the same
        return float(get_privacy_spent(orders=ORDERS, rdp=total * np.array(ORDERS), delta=delta)[0])


def multiplier(noise: float, sizes: Iterable[int]) -> float:
    """The noise multiplier of a weighted mean to which each client adds noise of its own.

    >>> multiplier(2.0, [5, 5, 5, 5])
    4.0
    """
    weights = np.array(list(sizes), dtype=float)
    return float(noise * np.sqrt(np.square(weights).sum()) / weights.max())


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT64:
        raise ValueError(f"{short(value)} is no count")
    return value


def _rho(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_RHO:
        raise ValueError(f"{short(value)} is no positive number")
    return float(value)
