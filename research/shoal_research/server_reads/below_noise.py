"""The attack of a curious server on sums with noise, from all messages of a run together.

It knows all rows but one: what a message holds beyond these is what that row adds, and noise of a known scale. Each
known row counts by how likely all messages are with it in that place (Bayes). There are three estimates of the row: the
mean of the known rows that count so; the one of these with the most others near it; and the linear estimate of the
least squared error, from all values that are linear in the row, trained on the known rows of the likeliest cluster. The
one that reads most rows counts, which no server can tell.

Beside it stands guessing: each row is taken for the centre of its cluster, for the mean of the known rows of its
cluster, or for the one of these with the most others near it, whichever reads most.

    python -m shoal_research.server_reads.below_noise RUN

Symbols in shapes: n rows of all clients, m of them of one client, k columns.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import softmax

from shoal.engine.settings.one_thread import one_thread
from shoal.engine.store.opened_run import OpenedRun
from shoal.engine.store.warm_start import initial_state
from shoal.engine.workers.arithmetic import arithmetic
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message, Tensors
from shoal.review.served.server_view import EVERYBODY, NEAR, Exchange, distances, played_round

INTERCEPT = 1e4
"""Prior variance of the constant part of a linear estimate, in units of the noise."""
LINEAR = ("sums", "total")
"""Names of tensors that are linear in the rows of a group."""
MAX_ROWS = 150
"""Rows that are looked for, and known beside the one: the first of each client."""


class Told(NamedTuple):
    """What all messages of a client tell of its rows, in units of its noise.

    Attributes:
        products: of what rows of all clients add to the messages, (n, n).
        linear: the same of values that are linear in the row.
        noise: products of what rows add with the noise, (n,).
        linear_noise: the same of values that are linear in the row.
        own: positions of the client's rows among all, (m,).
    """

    products: np.ndarray
    linear: np.ndarray
    noise: np.ndarray
    linear_noise: np.ndarray
    own: np.ndarray

    def estimates(self, rows: np.ndarray, cluster: np.ndarray, near: np.ndarray) -> Iterator[np.ndarray]:
        """Yield estimates of the client's rows, float64 (m, k).

        Args:
            rows: of all clients, (n, k).
            cluster: of each row, int (n,).
            near: which rows are near which, bool (n, n).
        """
        likelihood = self.products[self.own] + self.noise - self.products.diagonal() / 2
        likelihood[np.arange(len(self.own)), self.own] = -np.inf  # it is not known
        weights = softmax(likelihood, 1)
        yield from guesses(weights, rows, near)
        likeliest = (weights @ np.eye(cluster.max() + 1)[cluster]).argmax(1)
        found = np.empty((len(self.own), rows.shape[1]))
        for one in np.unique(likeliest):
            found[likeliest == one] = self.trained(np.flatnonzero(cluster == one), rows)[likeliest == one]
        yield found

    def trained(self, known: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the linear estimate of the client's rows (m, k), for each trained on known rows without itself.

        Args:
            known: positions of the rows that it is trained on.
            rows: of all clients, (n, k).
        """
        products = self.linear[:, known] + INTERCEPT
        inverse = np.linalg.inv(products[known] + len(known) * np.eye(len(known)))
        heard = products[self.own] + self.linear_noise[known]
        slopes = inverse @ rows[known]
        found: np.ndarray = heard @ slopes
        row, place = np.nonzero(self.own[:, None] == known)
        # What training on the row itself adds follows from the inverse.
        itself = (heard[row] * inverse[place]).sum(1) / inverse[place, place]
        found[row] -= itself[:, None] * slopes[place]
        return found


def guesses(weights: np.ndarray, rows: np.ndarray, near: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the mean of rows (n, k), and the one with the most near it, by their weights (m, n), float64 (m, k)."""
    yield weights @ rows / weights.sum(1, keepdims=True).clip(1e-300)
    yield rows[(weights @ near).argmax(1)]


class BelowNoise(NamedTuple):
    """Shares of rows that are known to within `NEAR` standard deviations of every column.

    Attributes:
        rows: number of rows that were looked for.
        near: share that the attack reads.
        guessed: share that guessing reads.
    """

    rows: int
    near: float
    guessed: float


class NoisySums:
    """What a server reads of sums with noise, if all clients take part in every round.

    Args:
        opened: the run.
        summed: whether the server sees only the sum of the clients' messages.
    """

    def __init__(self, opened: OpenedRun, summed: bool) -> None:
        self._opened = opened
        self._summed = summed
        self._products: dict[bool, np.ndarray] = defaultdict(lambda: np.zeros(()))
        self._noise: dict[tuple[int, bool], np.ndarray] = defaultdict(lambda: np.zeros(()))
        self._holder: list[int] = []
        self._rows = self._places = self._centres = np.empty((0, 0))
        """The rows where landmarks lie, or else where they are clustered; where they are clustered; the centres."""

    def hear(self, exchanges: Sequence[Exchange]) -> None:
        """Take in the messages of one round."""
        most = max(2, MAX_ROWS // len(exchanges))
        alone = {one.client.id: list(self.answers_alone(one, most)) for one in exchanges}
        self._holder = [client for client, answers in alone.items() for _ in answers]
        rows = self.heard_rows(exchanges, most)
        kinds = (False, True)[: 1 + (rows is None or np.array_equal(rows, self._rows))]
        bounds = self._opened.method.row_bounds(exchanges[0].message)
        for linear in kinds:
            units = {
                name: bound * math.sqrt(len(bounds)) for name, bound in bounds.items() if name in LINEAR or not linear
            }
            if units:
                added = csr_array(np.stack([in_units(one, units) for answers in alone.values() for one in answers]))
                self._products[linear] = self._products[linear] + (added @ added.T).toarray()
                for one in exchanges:
                    sender = (one.client.id, EVERYBODY)[self._summed]
                    noise = in_units(one.left, units) - in_units(one.answer, units)
                    self._noise[sender, linear] = self._noise[sender, linear] + added @ noise

    def heard_rows(self, exchanges: Sequence[Exchange], most: int) -> np.ndarray | None:
        """Return the rows of all clients (n, k) as they are summed in a round; None before the space is known."""
        found = [self._opened.method.summed_rows(one.message, one.client) for one in exchanges]
        parts = [one.rows[:most].numpy() for one in found if one is not None]
        if not parts:
            return None
        self._places = np.concatenate(parts)
        if not len(self._rows):
            self._rows = self._places
        centres = exchanges[0].message.tensors.get("centres", torch.empty(0))
        self._centres = centres.reshape(-1, self._places.shape[1]).numpy()
        return self._places

    def answers_alone(self, exchange: Exchange, most: int) -> Iterator[Message]:
        """Yield what a client would answer if it had but one of its rows, of at most so many, without noise."""
        message, client, *_ = exchange
        for place in torch.arange(len(client.train))[:most].split(1):
            memory = {name: kept[place] for name, kept in client.memory.items()}
            alone = replace(client, train=client.train.take(place), memory=memory)
            yield self._opened.method.client_update(message, alone).message

    def told(self, sender: int) -> Told:
        """Return what a sender's messages tell, in units of its noise."""
        privacy = self._opened.settings.privacy
        scales = np.full(len(self._opened.federation.sizes), privacy.noise)
        if privacy.unit == "client":
            scales *= self._opened.federation.sizes
        holder = np.array(self._holder)
        own = np.flatnonzero(holder == sender)
        square = scales[sender] ** 2
        if sender == EVERYBODY:
            own = np.arange(len(holder))
            square = (scales**2).sum()
        products, linear = (self._products[kind] / square for kind in (False, True))
        noise, linear_noise = (self._noise[sender, kind] / square for kind in (False, True))
        return Told(products, linear, noise, linear_noise, own)

    def view(self) -> BelowNoise:
        """Return the shares of the rows that the attack reads, by the estimate of the most."""
        told = [self.told(sender) for sender in sorted({sender for sender, _ in self._noise})]
        places = np.concatenate([one.own for one in told])
        rows = self._rows
        spread = rows.std(0)
        cluster = cdist(self._places, self._centres).argmin(1)
        near = distances(rows, rows, spread) < NEAR
        others = (cluster[:, None] == cluster) & ~np.eye(len(rows), dtype=bool)
        guessed = list(guesses(others.astype(float), rows, near))
        if np.array_equal(rows, self._places):
            guessed.append(self._centres[cluster])
        most = max(near_share(rows, one, spread) for one in guessed)
        found = [
            np.concatenate(parts) for parts in zip(*(one.estimates(rows, cluster, near) for one in told), strict=True)
        ]
        share = max(near_share(rows[places], one, spread) for one in found)
        return BelowNoise(len(rows), share, most)


def near_share(rows: np.ndarray, found: np.ndarray, spread: np.ndarray) -> float:
    """Return the share of rows (n, k) whose estimates are within `NEAR` deviations (k,) in every column that varies."""
    varies = spread > 0
    return float((np.abs(found - rows)[:, varies] < NEAR * spread[varies]).all(1).mean())


def in_units(answer: Message, units: Mapping[str, float]) -> np.ndarray:
    """Return values of an answer (v,), those of each tensor that is named, in the unit that is given."""
    values = torch.cat([(answer.tensors[name] / unit).flatten() for name, unit in sorted(units.items())])
    return values.numpy()


def played_below_noise(opened: OpenedRun, *, summed: bool) -> tuple[BelowNoise, Server]:
    """Play a run with noise in memory; return what its server reads, and the last state.

    Args:
        opened: the run; all clients take part in every round.
        summed: whether the server sees only the sum of the clients' messages.
    """
    heard = NoisySums(opened, summed)
    server = Server()
    for after, exchanges in rounds_of(opened):
        heard.hear(exchanges)
        server = after
    return heard.view(), server


def rounds_of(opened: OpenedRun) -> Iterator[tuple[Server, list[Exchange]]]:
    """Play a run in memory; yield the state after each round, and what was sent in it."""
    memories: dict[int, Tensors] = {}
    with one_thread(), arithmetic(opened.precision):
        server = initial_state(opened)
        while not server.finished and server.round < opened.settings.rounds:
            server, exchanges = played_round(opened, server, memories)
            yield server, exchanges


def main(name: str) -> None:
    """Print which shares of the rows the server of a finished run with noise reads."""
    from shoal.engine.store.run_folder import RunFolder

    opened = OpenedRun(RunFolder.find(name, unfinished=False))
    view, _ = played_below_noise(opened, summed=opened.settings.privacy.sums == "masked")
    print(f"of {view.rows:,} rows read to within {NEAR:g} deviations: {view.near:.1%}; guessed: {view.guessed:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
