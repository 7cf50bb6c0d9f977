"""The manifest of a round: its metrics, what each client did, and what it took. It is kept for every round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.core.errors import ShoalError, shown
from shoal.engine.store.finished_work import FinishedWork
from shoal.methods.contract.declared import MAX_INT64, MIN_INT64, fits, short


class MetricNameTaken(ShoalError):
    """A client's metric has the name of something that the engine counts itself."""


COUNTED = ("round", "client", "samples", "bytes_up", "bytes_down", "bytes_d2d", "seconds")
"""The first columns of the table of clients; the clients' own metrics follow, by name."""


def check_metric_names(metrics: Mapping[str, float]) -> None:
    """Refuse metrics with the names of what the engine counts.

    Raises:
        MetricNameTaken: names them.
    """
    taken = sorted(metrics.keys() & set(COUNTED))
    if taken:
        raise MetricNameTaken(
            f"a client's metric may not be called {' or '.join(map(repr, taken))}: the engine counts that itself; "
            "give it another name in the method"
        )


MAX_METRICS = 100
"""Metrics that a client may report, at most."""
METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,99}")


def odd_metrics(metrics: Mapping[str, float]) -> str | None:
    """Return why a client's metrics fit no table; None where they do.

    What is not finite does: honest work may diverge. Whole numbers fit where 64 bits hold them.
    """
    if not isinstance(metrics, Mapping):
        return f"{short(metrics)}, expected numbers by name"
    if len(metrics) > MAX_METRICS:
        return f"{len(metrics)} metrics, expected at most {MAX_METRICS}"
    for name, value in metrics.items():
        if not (isinstance(name, str) and METRIC_NAME.fullmatch(name)):
            return f"{shown(name)} is no name of a metric: expected up to 100 letters, digits, and _ . / -"
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{name!r} is {shown(value)}, expected a number"
        if isinstance(value, int) and not fits(value):
            return f"{name!r} is {short(value)}, expected a whole number from {MIN_INT64} to {MAX_INT64}"
    return None


def odd_counts(done: FinishedWork, samples: int) -> str | None:
    """Return what is wrong with the counts of a client's finished work; None: nothing.

    Args:
        done: as a worker answered it: any value may be wrong.
        samples: how many training samples the client has.
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
        # An int is looked at first: one of hundreds of digits is no float.
        number = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= MAX_INT64
        if not number:
            return f"{name} is {short(value)}, expected a number from 0 to {MAX_INT64}"
    return None


@dataclass(frozen=True)
class ClientRow:
    """What a client did in a round.

    Args:
        round: the round.
        client: the client's id.
        samples: how many training samples it has.
        bytes_up: to the server; `bytes_down` from it, `bytes_d2d` to other clients.
        seconds: how long its work took.
        metrics: its own, by name.
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
    def of_work(cls, round: int, done: FinishedWork) -> ClientRow:
        """Return the row of a client's finished work."""
        sizes = done.bytes_up, done.bytes_down, done.bytes_d2d
        return cls(round, done.client, done.samples, *sizes, done.seconds, done.metrics)

    def to_json(self) -> dict[str, Any]:
        """Return a row of the table of clients; its columns have one order, from memory and from a file."""
        return {name: getattr(self, name) for name in COUNTED} | dict(sorted(self.metrics.items()))

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> ClientRow:
        """Return what such a row holds."""
        metrics = {name: value for name, value in plain.items() if name not in COUNTED}
        return cls(metrics=metrics, **{name: plain[name] for name in COUNTED})


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
    def from_json(cls, plain: dict[str, int]) -> PeerBytes:
        """Return what such a row holds."""
        return cls(plain["round"], plain["from"], plain["to"], plain["bytes"])


@dataclass(frozen=True)
class RoundSeconds:
    """How many seconds the parts of a round took, and the round."""

    train: float
    aggregate: float
    evaluate: float
    round: float


@dataclass(frozen=True)
class RoundRecord:
    """What the clients of a round did.

    Args:
        metrics: of the server state after the round, by name; empty where it was not evaluated.
        clients: a row a client, by id.
        links: the messages between clients.
        left_out: clients that were chosen and failed.
        seconds: how long the round took.
        refused: the clients left out because their messages were refused.
        refusals: in how many rounds so far each client was refused, this one included, so that quarantine needs no
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
    """What manifest.json of a round says.

    Args:
        round: the round; 0 for the initial state, of which there is no record.
        finished_at: seconds since the epoch.
        server_sha256: digest of the server state.
        record: what its clients did; None for round 0.
        finished: whether the method ended the training with this round.
        files: hex digest of the other files of the checkpoint, by name.
    """

    round: int
    finished_at: float
    server_sha256: str
    record: RoundRecord | None = None
    finished: bool | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        about = {name: value for name, value in vars(self).items() if name != "record"}
        if self.record is not None:
            about |= {
                **vars(self.record),
                "clients": [row.to_json() for row in self.record.clients],
                "links": [row.to_json() for row in self.record.links],
                "seconds": asdict(self.record.seconds),
                "refusals": {str(client): rounds for client, rounds in sorted(self.record.refusals.items())},
            }
        return about

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Manifest:
        """Return the manifest that JSON holds.

        Raises:
            KeyError: an entry is missing.
        """
        about = {name: plain[name] for name in ("round", "finished_at", "server_sha256", "finished", "files")}
        record = None
        if "clients" in plain:
            record = RoundRecord(
                plain["metrics"],
                tuple(ClientRow.from_json(row) for row in plain["clients"]),
                tuple(PeerBytes.from_json(row) for row in plain["links"]),
                tuple(plain["left_out"]),
                RoundSeconds(**plain["seconds"]),
                tuple(plain["refused"]),
                {int(k): rounds for k, rounds in plain["refusals"].items()},
            )
        return cls(record=record, **about)
