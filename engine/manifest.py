"""The manifest of a round: its metrics, what each client did, and what it took. It is kept for every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.finished_work import FinishedWork

COUNTED = ("round", "client", "samples", "bytes_up", "bytes_down", "bytes_d2d", "seconds")
"""The first columns of the table of clients; the clients' own metrics follow, by name."""


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
        """Of a client's finished work."""
        sizes = done.bytes_up, done.bytes_down, done.bytes_d2d
        return cls(round, done.client, done.samples, *sizes, done.seconds, done.metrics)

    def plain(self) -> dict[str, Any]:
        """A row of the table of clients, its columns in one order, whether it comes from memory or from a file."""
        return {name: getattr(self, name) for name in COUNTED} | dict(sorted(self.metrics.items()))

    @classmethod
    def of(cls, plain: dict[str, Any]) -> ClientRow:
        """From such a row."""
        metrics = {name: value for name, value in plain.items() if name not in COUNTED}
        return cls(metrics=metrics, **{name: plain[name] for name in COUNTED})


@dataclass(frozen=True)
class PeerBytes:
    """The size in bytes of one message between two clients."""

    round: int
    sender: int
    receiver: int
    bytes: int

    def plain(self) -> dict[str, int]:
        """A row of the table of links."""
        return {"round": self.round, "from": self.sender, "to": self.receiver, "bytes": self.bytes}

    @classmethod
    def of(cls, plain: dict[str, int]) -> PeerBytes:
        """From such a row."""
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
    """

    metrics: Mapping[str, float]
    clients: tuple[ClientRow, ...]
    links: tuple[PeerBytes, ...]
    left_out: tuple[int, ...]
    seconds: RoundSeconds

    def totals(self) -> dict[str, int]:
        """Bytes up, down and between clients, of all clients together."""
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
    """

    round: int
    finished_at: float
    server_sha256: str
    record: RoundRecord | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        about: dict[str, Any] = {
            "round": self.round,
            "finished_at": self.finished_at,
            "server_sha256": self.server_sha256,
        }
        if self.record is not None:
            about |= {
                "metrics": dict(self.record.metrics),
                "clients": [row.plain() for row in self.record.clients],
                "links": [row.plain() for row in self.record.links],
                "left_out": list(self.record.left_out),
                "seconds": asdict(self.record.seconds),
            }
        return about

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Manifest:
        """From JSON.

        Raises:
            KeyError: an entry is missing.
        """
        record = None
        if "clients" in plain:
            record = RoundRecord(
                plain["metrics"],
                tuple(ClientRow.of(row) for row in plain["clients"]),
                tuple(PeerBytes.of(row) for row in plain.get("links", [])),
                tuple(plain["left_out"]),
                RoundSeconds(**plain["seconds"]),
            )
        return cls(plain["round"], plain["finished_at"], plain["server_sha256"], record)
