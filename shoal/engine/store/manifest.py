"""The manifest of a round: its metrics, a row for each client, and the time of each step; kept for every round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.records import BadRecord, record_from_json
from shoal.engine.store.codec import StoreError, read_sealed

COUNTED = ("round", "client", "samples", "bytes_up", "bytes_down", "bytes_d2d", "seconds")
"""The first columns of the table of clients, which the engine fills; the clients' own metrics follow, by name."""


@dataclass(frozen=True)
class ClientRow:
    """What is counted of a client's work in a round.

    Args:
        client: the client's id.
        samples: number of its training samples.
        bytes_up: size of its message to the server, as `Message.size` counts it.
        bytes_down: size of the message from the server.
        bytes_d2d: size of all its messages to other clients.
        seconds: time of its work.
        metrics: its own metrics, by name.
    """

    client: int
    samples: int
    bytes_up: int
    bytes_down: int
    bytes_d2d: int
    seconds: float
    metrics: Mapping[str, float]


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
        left_out: the clients that were drawn and are not done.
        seconds: the time of the round.
        refusals: number of rounds so far, with this one, in which each client (its id as text) was refused, so that
            quarantine needs no older manifests.
    """

    metrics: Mapping[str, float]
    clients: tuple[ClientRow, ...]
    left_out: tuple[int, ...]
    seconds: RoundSeconds
    refusals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The content of a round's manifest.json.

    Args:
        round: the round; 0: the initial state.
        finished_at: time of its end, in seconds since the epoch.
        files: hex digests of the other files of the checkpoint, by name.
        record: the record of the round; None for round 0.
    """

    round: int
    finished_at: float
    files: Mapping[str, str]
    record: RoundRecord | None = None


def read_manifest(path: Path, round: int) -> Manifest:
    """Read the manifest of a round.

    Raises:
        StoreError: it is missing, incomplete, changed, or of another round.
    """
    try:
        manifest = record_from_json(Manifest, read_sealed(path))
    except BadRecord as error:
        raise StoreError(f"{path} is not the manifest of a round: {error}") from None
    if manifest.round != round:
        raise StoreError(f"{path} is the manifest of round {manifest.round}")
    return manifest
