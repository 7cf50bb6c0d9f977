"""What the engine asks of workers, and what they answer.

Requests and answers are small; tensors stay in files of the run's folder. Within a process and over a pipe they travel
as they are. What leaves this installation (Dask, remote files) travels as JSON values with a few arrays, made by
`plain` and read back by `request_of` and `answer_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.core.errors import FailureCause
from shoal.engine.store.finished_work import FinishedWork
from shoal.engine.store.memory_index import MemoryIndex

# --- requests ---------------------------------------------------------------------------------------------------------


class Deadline(Protocol):
    """When a worker is held to hang (`shoal.engine.rounds.deadlines`). It stays with whoever asks: a worker is not
    told.
    """

    def reason(self, spent: float, idle: float) -> str | None:
        """Why the worker is held to hang; None where it is not.

        Args:
            spent: seconds that it has worked on the request.
            idle: the newest seconds in which it used no core; 0 where nobody can tell.
        """
        ...


@dataclass(frozen=True)
class ClientFiles:
    """What a client's work begins from; paths are relative to the run's folder.

    Args:
        client: the client's id.
        memory: its newest private memory, if it has one.
        inbox: the messages of other clients that wait for it.
        sha256: hex digest of each of these files, by its path.
    """

    client: int
    memory: str | None = None
    inbox: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Train:
    """Train some clients of a round.

    Args:
        run: the run's folder.
        round: the round, whose messages come from the server state of the round before.
        clients: what each client's work begins from.
        groups: the ids in groups, each trained in one computation.
        deadline: when the worker is held to hang; None: never.
        server: the file of that server state; None: the one in the run's folder.
        begun_from: the round of that state where it is another than the one before.
    """

    run: Path
    round: int
    clients: tuple[ClientFiles, ...]
    groups: tuple[tuple[int, ...], ...]
    deadline: Deadline | None = field(default=None, compare=False, repr=False)
    server: Path | None = None
    begun_from: int | None = None

    @property
    def state(self) -> int:
        """The round of the server state that the work begins from."""
        return self.round - 1 if self.begun_from is None else self.begun_from

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "do": "train",
            "run": str(self.run),
            "round": self.round,
            "clients": [
                {"client": c.client, "memory": c.memory, "inbox": list(c.inbox), "sha256": dict(c.sha256)}
                for c in self.clients
            ],
            "groups": [list(group) for group in self.groups],
            "server": None if self.server is None else str(self.server),
            "begun_from": self.begun_from,
        }


@dataclass(frozen=True)
class Evaluate:
    """Compute the metrics of a server state.

    Args:
        run: the run's folder.
        round: the round that the state is of.
        server: the file of the state.
        memory_index: memories and inboxes of the clients after the round.
        final: also what is computed only at the end of a run.
        deadline: as of `Train`.
        parts: in how many parts workers have looked at all samples (`EvaluateShard`); 0: nobody has.
    """

    run: Path
    round: int
    server: Path
    memory_index: MemoryIndex
    final: bool
    deadline: Deadline | None = field(default=None, compare=False, repr=False)
    parts: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "do": "evaluate",
            "run": str(self.run),
            "round": self.round,
            "server": str(self.server),
            "links": self.memory_index.to_json(),
            "final": self.final,
            "parts": self.parts,
        }


@dataclass(frozen=True)
class Recalibrate:
    """Find what stands in place of a server state's tensors when it is judged.

    Args:
        run, round, server, memory_index, final, deadline: as of `Evaluate`.
    """

    run: Path
    round: int
    server: Path
    memory_index: MemoryIndex
    final: bool
    deadline: Deadline | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {**evaluation_of(self).to_json(), "do": "recalibrate"}


@dataclass(frozen=True)
class EvaluateShard:
    """Look at a part of all samples with the model of a server state, for an evaluation of it.

    Args:
        run, round, server, memory_index, final, deadline: as of `Evaluate`.
        part: number of the part.
        parts: how many there are.
        averaged: with the state as it was averaged; else with what lies beside it in its place.
    """

    run: Path
    round: int
    server: Path
    memory_index: MemoryIndex
    final: bool
    part: int
    parts: int
    averaged: bool
    deadline: Deadline | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        about = {"do": "shard", "part": self.part, "averaged": self.averaged}
        return {**evaluation_of(self).to_json(), **about, "parts": self.parts}


def evaluation_of(request: Recalibrate | EvaluateShard) -> Evaluate:
    """The evaluation that a request is for."""
    return Evaluate(request.run, request.round, request.server, request.memory_index, request.final)


@dataclass(frozen=True)
class Assign:
    """Find the cluster of every sample under a server state.

    Args:
        run, round, server, memory_index, deadline: as of `Evaluate`.
        judge: also say how well the clusters are separated.
    """

    run: Path
    round: int
    server: Path
    memory_index: MemoryIndex
    judge: bool
    deadline: Deadline | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "do": "assign",
            "run": str(self.run),
            "round": self.round,
            "server": str(self.server),
            "links": self.memory_index.to_json(),
            "judge": self.judge,
        }


Request = Train | Evaluate | Recalibrate | EvaluateShard | Assign


@dataclass(frozen=True)
class RemoteRequest:
    """A request for a worker that does not see the run's folder, and where copies of the files are.

    Args:
        request: what is asked.
        url: fsspec URL that this machine and the worker both reach.
        key: what the run is called there.
        files: what the request reads: hex digest of each file, by its path in the run's folder.
        back: where, under the URL, the worker puts its clients' files.
        data: digest of the prepared data.
        partition: digest of the partition.
    """

    request: Request
    url: str
    key: str
    files: Mapping[str, str]
    back: str
    data: str
    partition: str

    @property
    def deadline(self) -> Deadline | None:
        """Of what is asked."""
        return self.request.deadline

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        about = {"url": self.url, "run": self.key, "files": dict(self.files), "back": self.back}
        return {**self.request.to_json(), "depot": {**about, "data": self.data, "partition": self.partition}}


def request_of(plain: dict[str, Any]) -> Request | RemoteRequest:
    """A request from its JSON.

    Raises:
        ValueError: no such request.
    """
    if "depot" in plain:
        about = plain["depot"]
        request = request_of({key: value for key, value in plain.items() if key != "depot"})
        assert not isinstance(request, RemoteRequest)
        return RemoteRequest(
            request,
            about["url"],
            about["run"],
            dict(about["files"]),
            about["back"],
            about["data"],
            about["partition"],
        )
    run, round = Path(plain["run"]), plain["round"]
    if plain["do"] == "train":
        clients = tuple(ClientFiles(c["client"], c["memory"], tuple(c["inbox"]), c["sha256"]) for c in plain["clients"])
        groups = tuple(tuple(group) for group in plain["groups"])
        given = Path(plain["server"]) if plain.get("server") else None
        return Train(run, round, clients, groups, server=given, begun_from=plain.get("begun_from"))
    server, memory_index = Path(plain["server"]), MemoryIndex.from_json(plain["links"])
    if plain["do"] == "evaluate":
        return Evaluate(run, round, server, memory_index, plain["final"], parts=plain["parts"])
    if plain["do"] == "recalibrate":
        return Recalibrate(run, round, server, memory_index, plain["final"])
    if plain["do"] == "shard":
        part, parts, averaged = plain["part"], plain["parts"], plain["averaged"]
        return EvaluateShard(run, round, server, memory_index, plain["final"], part, parts, averaged)
    if plain["do"] == "assign":
        return Assign(run, round, server, memory_index, plain["judge"])
    raise ValueError(f"a worker cannot do {plain['do']!r}")


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """Why a request, or the work of one client, came to nothing.

    Args:
        error: what to tell.
        cause: as far as it decides what is done next.
        traceback: where it happened, for whoever looks for a mistake in the code.
    """

    error: str
    cause: FailureCause = FailureCause.OTHER
    traceback: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"error": self.error, "cause": self.cause.value, "traceback": self.traceback}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Failed:
        """Return a failure from its JSON; a cause that is not known here counts as `FailureCause.OTHER`."""
        return cls(plain["error"], FailureCause(plain["cause"]), plain["traceback"])


@dataclass(frozen=True)
class Trained:
    """What became of each client of a `Train`, by its id."""

    clients: dict[int, FinishedWork | Failed]

    def to_json(self) -> dict[str, Any]:
        """As JSON, but for the ids, which stay numbers."""
        return {"clients": {client: result.to_json() for client, result in self.clients.items()}}


@dataclass(frozen=True)
class Evaluated:
    """The metrics of a server state by name, and how many seconds they took; the answer to what prepares them too.

    Args:
        metrics: by name; none of `Recalibrate` and `EvaluateShard`.
        seconds: for all of them.
        judged: tensors that stood in place of the state's when it was judged (`Method.recalibrate`).
    """

    metrics: dict[str, float]
    seconds: float
    judged: dict[str, np.ndarray] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON, but for the arrays."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Assigned:
    """The cluster of every sample of a set, first the n training samples, then the test samples.

    Args:
        clusters: how many clusters there are.
        cluster: of each sample, int64 (n,).
        confidence: how sure the model is of it, float32 (n,).
        centres: of the clusters (c, d), where clusters are defined by centres.
        distance: of each sample to its centre (n,), where there are centres.
        silhouette: mean silhouette of the samples' features, if asked for and defined.
        shown: numbers of some samples, int64 (m,), if asked for (`shoal.methods.scores.shown`).
        features: their features, or principal components of them, float32 (m, p).
    """

    clusters: int
    cluster: np.ndarray
    confidence: np.ndarray
    centres: np.ndarray | None = None
    distance: np.ndarray | None = None
    silhouette: float | None = None
    shown: np.ndarray | None = None
    features: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON, but for the arrays."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Answer = Trained | Evaluated | Assigned | Failed


def answer_of(request: Request | RemoteRequest, plain: dict[str, Any]) -> Answer:
    """A worker's answer to `request` from plain values."""
    if "error" in plain:
        return Failed.from_json(plain)
    if isinstance(request, RemoteRequest):
        return answer_of(request.request, plain)
    if isinstance(request, Train):
        results = plain["clients"].items()
        return Trained({int(k): Failed.from_json(v) if "error" in v else FinishedWork.from_json(v) for k, v in results})
    return Assigned(**plain) if isinstance(request, Assign) else Evaluated(**plain)
