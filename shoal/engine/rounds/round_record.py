"""The record of a round in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from shoal.engine.rounds.outcomes import RoundOutcomes
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.manifest import ClientRow, RoundRecord, RoundSeconds


def client_row(work: FinishedWork) -> ClientRow:
    """Return the row of a client's finished work."""
    return ClientRow(**{column.name: getattr(work, column.name) for column in fields(ClientRow)})


def make_record(
    round: int,
    outcomes: RoundOutcomes,
    metrics: Mapping[str, float],
    seconds: RoundSeconds,
    refusals: Mapping[str, int],
) -> RoundRecord:
    """Return the record of a round: the clients that were drawn and those that are done."""
    done = outcomes.done
    rows = tuple(client_row(done[client]) for client in sorted(done))
    return RoundRecord(metrics, rows, tuple(sorted(outcomes.drawn - done.keys())), seconds, refusals)
