"""The manifest of a round: its metrics, a row for each client, and the time of each step; kept for every round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.core.errors import ShoalError, shown
from shoal.engine.store.finished_work import FinishedWork
from shoal.methods.contract.declared import MAX_INT64, MIN_INT64, fits, short


class MetricNameTaken(ShoalError):
    """A client's metric has the name of a column that the engine fills."""


COUNTED = ("round", "client", "samples", "bytes_up", "bytes_down", "bytes_d2d", "seconds")
"""The first columns of the table of clients, which the engine fills; the clients' own metrics follow, by name."""


def check_metric_names(metrics: Mapping[str, float]) -> None:
    """Refuse metrics with the names of columns that the engine fills.

    Raises:
        MetricNameTaken: names them.
    """
    taken = sorted(metrics.keys() & set(COUNTED))
    if taken:
        raise MetricNameTaken(
            f"a client's metric must not be called {' or '.join(map(repr, taken))}, which the engine counts itself: "
            "give it another name in the method"
        )


MAX_METRICS = 100
"""Most metrics that a client may report."""
METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")


def metrics_fault(metrics: Mapping[str, float]) -> str | None:
    """Return why a client's metrics do not fit into a table; None if they do.

    NaN and infinite values fit, since honest work may diverge; whole numbers must have at most 64 bits.
    """
    if not isinstance(metrics, Mapping):
        return f"{short(metrics)}, expected numbers by name"
    if len(metrics) > MAX_METRICS:
        return f"{len(metrics)} metrics, expected at most {MAX_METRICS}"
    for name, value in metrics.items():
        if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
            return f"{shown(name)} is not the name of a metric: expected up to 100 letters, digits, and _ . / -"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{name!r} is {shown(value)}, expected a number"
        if isinstance(value, int) and not fits(value):
            return f"{name!r} is {short(value)}, expected a whole number from {MIN_INT64} to {MAX_INT64}"
    return None


def counts_fault(done: FinishedWork, samples: int) -> str | None:
    """Return what is wrong with the counts of a client's finished work; None: nothing.

    Args:
        done: the answer of a worker, in which any value may be wrong.
        samples: number of the client's training samples.
    """
    if type(done.client) is not int or not 0 <= done.client <= MAX_INT64:
        return f"client is {short(done.client)}, expected a whole number"
    if type(done.samples) is not int or done.samples != samples:
        return f"samples is {short(done.samples)}, expected {samples}"
    sizes = {name: getattr(done, name) for name in ("bytes_up", "bytes_down", "bytes_d2d")}
    for name, size in (*sizes.items(), *((f"bytes to client {short(peer)}", s) for peer, s in done.peers.items())):
        if type(size) is not int or not 0 <= size <= MAX_INT64:
            return f"{name} is {short(size)}, expected a whole number from 0 to {MAX_INT64}"
    for name, value in (("seconds", done.seconds), ("norm", 0.0 if done.norm is None else done.norm)):
        # Compared as they are: a whole number of hundreds of digits cannot become a float.
        number = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= MAX_INT64
        if not number:
            return f"{name} is {short(value)}, expected a number from 0 to {MAX_INT64}"
    return None


@dataclass(frozen=True)
class ClientRow:
    """The row of a client in a round.

    Args:
        round: the round.
        client: the client's id.
        samples: number of its training samples.
        bytes_up, bytes_down, bytes_d2d: bytes that it sent to the server, got from it, and sent to other clients.
        seconds: time of its work.
        metrics: its own metrics, by name.
    """

    round: int
    client: int
    samples: int
    bytes_up: int
    bytes_down: int
    bytes_d2d: int
    seconds: float
    metrics: Mapping[str, float]

    @classmethod
    def from_work(cls, round: int, done: FinishedWork) -> ClientRow:
        """Return the row of a client's finished work."""
        sizes = done.bytes_up, done.bytes_down, done.bytes_d2d
        return cls(round, done.client, done.samples, *sizes, done.seconds, done.metrics)

    def to_json(self) -> dict[str, Any]:
        """Return a row of the table of clients, with the columns always in the same order."""
        return {name: getattr(self, name) for name in COUNTED} | dict(sorted(self.metrics.items()))

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> ClientRow:
        """Return the row from its JSON."""
        metrics = {name: value for name, value in entries.items() if name not in COUNTED}
        return cls(metrics=metrics, **{name: entries[name] for name in COUNTED})


@dataclass(frozen=True)
class PeerBytes:
    """The size in bytes of one message between two clients."""

    round: int
    sender: int
    receiver: int
    bytes: int

    def to_json(self) -> dict[str, int]:
        """Return a row of the table of links."""
        return {"round": self.round, "from": self.sender, "to": self.receiver, "bytes": self.bytes}

    @classmethod
    def from_json(cls, entries: dict[str, int]) -> PeerBytes:
        """Return the row from its JSON."""
        return cls(entries["round"], entries["from"], entries["to"], entries["bytes"])


@dataclass(frozen=True)
class RoundSeconds:
    """The seconds of each step of a round, and of the whole round."""

    train: float
    aggregate: float
    evaluate: float
    round: float


@dataclass(frozen=True)
class RoundRecord:
    """The record of a round.

    Args:
        metrics: metrics of the server state after the round, by name; empty: it was not evaluated.
        clients: the rows of the clients that are done, by id.
        links: the messages between clients.
        left_out: the clients that were drawn and are not done.
        seconds: the time of the round.
        refused: the clients whose messages were refused.
        refusals: number of rounds so far, with this one, in which each client was refused, so that quarantine needs no
            older manifests.
    """

    metrics: Mapping[str, float]
    clients: tuple[ClientRow, ...]
    links: tuple[PeerBytes, ...]
    left_out: tuple[int, ...]
    seconds: RoundSeconds
    refused: tuple[int, ...] = ()
    refusals: Mapping[int, int] = field(default_factory=dict)

    def totals(self) -> dict[str, int]:
        """Return the bytes up, down and between clients, of all clients together."""
        return {
            "bytes_up": sum(row.bytes_up for row in self.clients),
            "bytes_down": sum(row.bytes_down for row in self.clients),
            "bytes_d2d": sum(row.bytes_d2d for row in self.clients),
        }


@dataclass(frozen=True)
class Manifest:
    """The content of a round's manifest.json.

    Args:
        round: the round; 0: the initial state.
        finished_at: time of its end, in seconds since the epoch.
        record: the record of the round; None for round 0.
        files: hex digests of the other files of the checkpoint, by name.
    """

    round: int
    finished_at: float
    record: RoundRecord | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        entries = {name: value for name, value in vars(self).items() if name != "record"}
        if self.record is not None:
            entries |= {
                **vars(self.record),
                "clients": [row.to_json() for row in self.record.clients],
                "links": [row.to_json() for row in self.record.links],
                "seconds": asdict(self.record.seconds),
                "refusals": {str(client): rounds for client, rounds in sorted(self.record.refusals.items())},
            }
        return entries

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Manifest:
        """Return the manifest from its JSON.

        Raises:
            KeyError: an entry is missing.
        """
        values = {name: entries[name] for name in ("round", "finished_at", "files")}
        record = None
        if "clients" in entries:
            record = RoundRecord(
                entries["metrics"],
                tuple(ClientRow.from_json(row) for row in entries["clients"]),
                tuple(PeerBytes.from_json(row) for row in entries["links"]),
                tuple(entries["left_out"]),
                RoundSeconds(**entries["seconds"]),
                tuple(entries["refused"]),
                {int(k): rounds for k, rounds in entries["refusals"].items()},
            )
        return cls(record=record, **values)
