"""The record of a round in its manifest."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import ClientRow, PeerBytes, RoundRecord, RoundSeconds


def client_row(round: int, work: FinishedWork) -> ClientRow:
    """Return the row of a client's finished work."""
    sizes = work.bytes_up, work.bytes_down, work.bytes_d2d
    return ClientRow(round, work.client, work.samples, *sizes, work.seconds, work.metrics)


def make_record(
    round: int,
    outcomes: RoundOutcomes,
    metrics: Mapping[str, float],
    seconds: RoundSeconds,
    refusals: Mapping[str, int],
) -> RoundRecord:
    """Return the record of a round: the clients that were drawn and those that are done."""
    done = outcomes.done
    works = [done[client] for client in sorted(done)]
    return RoundRecord(
        metrics,
        tuple(client_row(round, work) for work in works),
        tuple(PeerBytes(round, work.client, peer, size) for work in works for peer, size in work.peers.items()),
        tuple(sorted(outcomes.drawn - done.keys())),
        seconds,
        refusals,
    )
