"""The record of a round in its manifest: its clients, and the time of each step."""

from __future__ import annotations

import time

from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import ClientRow, PeerBytes, RoundRecord, RoundSeconds


class RoundClock:
    """Measures the steps of a round, which begins when the clock is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._trained = self._began
        self._aggregated = self._began

    def end_training(self) -> None:
        """Record that training has ended; the last call counts."""
        self._trained = time.perf_counter()

    def end_aggregation(self) -> None:
        """Record that the next state exists."""
        self._aggregated = time.perf_counter()

    def end_evaluation(self) -> RoundSeconds:
        """Return the seconds of training, aggregation, evaluation, and all of them."""
        evaluated = time.perf_counter()
        return RoundSeconds(
            self._trained - self._began,
            self._aggregated - self._trained,
            evaluated - self._aggregated,
            evaluated - self._began,
        )


def client_row(round: int, work: FinishedWork) -> ClientRow:
    """Return the row of a client's finished work."""
    sizes = work.bytes_up, work.bytes_down, work.bytes_d2d
    return ClientRow(round, work.client, work.samples, *sizes, work.seconds, work.metrics)


def make_record(round: int, outcomes: RoundOutcomes, metrics: dict[str, float], seconds: RoundSeconds) -> RoundRecord:
    """Return the record of a round: the clients that were drawn and those that are done."""
    done = outcomes.done
    works = [done[client] for client in sorted(done)]
    return RoundRecord(
        metrics,
        tuple(client_row(round, work) for work in works),
        tuple(PeerBytes(round, work.client, peer, size) for work in works for peer, size in work.peers.items()),
        tuple(sorted(outcomes.drawn - done.keys())),
        seconds,
        tuple(sorted(outcomes.refused)),
    )
