"""The schedule of answers in asynchronous rounds: buffered asynchronous aggregation (FedBuff).

A share of the clients trains at any time. When a client has answered, another begins from the newest state, and when
the buffer holds enough answers, these make the next state. So an answer may have begun from a state that is several
rounds old. Times are simulated: that of a client is in proportion to its samples, and 1 with the mean number.
Everything follows from the seed and not from real times, so that such runs can be repeated, resumed and shared among
workers like others: the order of events is known before any training.

Source: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (arXiv:2106.06639), algorithm 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.streams import Streams


@dataclass(frozen=True)
class RoundAnswers:
    """The answers of a round.

    Args:
        begun_from: by client, the round of the state from which its work began.
        time: arrival of the last answer, in simulated time since the run began.
    """

    begun_from: dict[int, int]
    time: float


class AnswerSchedule:
    """The answers of every round, by a simulation that runs as far as needed.

    Args:
        sizes: training samples of each client.
        seed: of the run.
        at_work: number of clients that train at once.
        buffer: number of answers in a round; at most `at_work`.
        dropout: probability that a client that has begun never answers.
    """

    def __init__(self, sizes: Sequence[int], seed: int, at_work: int, buffer: int, dropout: float = 0.0) -> None:
        self._sizes = sizes
        self._mean = max(float(np.mean(sizes)), 1e-9)
        self._buffer = buffer
        self._dropout = dropout
        self._rng = Streams(seed).numpy("arrivals")
        self._free = at_work
        self._working: list[tuple[float, int, int, int, bool]] = []
        self._busy: set[int] = set()
        """Clients that train or are in the buffer: no client answers twice in a round."""
        self._begun = 0
        self._rounds: list[RoundAnswers] = []

    def round(self, number: int) -> RoundAnswers:
        """Return the answers of a round, counted from 1."""
        while len(self._rounds) < number:
            self._rounds.append(self._next())
        return self._rounds[number - 1]

    def time(self, client: int) -> float:
        """Return the simulated time of a client, which is always the same: 1 with the mean number of samples.

        A client without samples counts as one with the mean number. It can only fail, and must not return at once and
        fill every buffer.
        """
        return float((self._sizes[client] or self._mean) / self._mean)

    def oldest(self, rounds: int) -> int:
        """Return for how many rounds a state is needed: the age of the stalest answer up to round `rounds`."""
        return max(
            number - 1 - from_round
            for number in range(1, rounds + 1)
            for from_round in self.round(number).begun_from.values()
        )

    def _next(self) -> RoundAnswers:
        state = len(self._rounds)
        now = 0.0
        if self._rounds:
            now = self._rounds[-1].time
        answers: dict[int, int] = {}
        while len(answers) < self._buffer:
            self._begin(state, now)
            now, _, client, begun_from, silent = heapq.heappop(self._working)
            self._free += 1
            if silent:
                self._busy.remove(client)
            else:
                answers[client] = begun_from
        self._busy -= answers.keys()
        return RoundAnswers(dict(sorted(answers.items())), now)

    def _begin(self, state: int, now: float) -> None:
        """Have as many clients as possible begin from a state."""
        clients = len(self._sizes)
        while self._free and len(self._busy) < clients:
            if 2 * len(self._busy) < clients:
                client = int(self._rng.integers(clients))
                if client in self._busy:
                    continue
            else:  # few are left: a draw among them ends sooner
                left = [client for client in range(clients) if client not in self._busy]
                client = left[int(self._rng.integers(len(left)))]
            silent = bool(self._rng.random() < self._dropout)
            self._free -= 1
            self._begun += 1
            self._busy.add(client)
            heapq.heappush(self._working, (now + self.time(client), self._begun, client, state, silent))
