"""The facts of UIFCA, typed: the server's state, of which clients are told where the run is.

On disk and on the link they are JSON values (`Server.facts`, `Message.facts`). Their keys are fixed, so that a run
folder can be resumed, and every number that travels is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from shoal.methods.contract.base import Server

TOLD = ("phase", "cluster_round", "comm_round")
"""What clients are told of the state."""


@dataclass(frozen=True)
class UIFCAState:
    """The server's facts between rounds; the flows themselves are `Server.model["flows"]`, (K, p).

    Attributes:
        phase: purpose of the next round: `centres`, collect the centres of k-FED's start, or `learn` flows.
        cluster_round: finished cluster rounds (t of algorithm 2).
        comm_round: finished communication rounds of the present cluster round (l of algorithm 3).
        still: assignments in a row in which no point changed its cluster.
        empty: flows that had no point in the last round.
        diverged: flows that had points in the last round, and no finite result from any client.
        changed: points that changed their cluster at the start of the present cluster round; -1 before the first.
        clients: number of clients.
        current: always empty; it is in the digests of states that were recorded.
    """

    phase: str
    cluster_round: int = 0
    comm_round: int = 0
    still: int = 0
    empty: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()
    changed: int = -1
    clients: int = 0
    current: tuple[int, ...] = ()

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> UIFCAState:
        """Read the state from facts of a server, or what a message tells of it."""
        known: dict[str, Any] = {item.name: facts[item.name] for item in fields(cls) if item.name in facts}
        for key, value in known.items():
            known[key] = tuple(value) if isinstance(value, list) else value
        return cls(**known)

    @classmethod
    def from_server(cls, server: Server) -> UIFCAState:
        """Read the state from a server's facts."""
        return cls.from_facts(server.facts)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}

    def told(self) -> dict[str, Any]:
        """Return what clients are told of the state before their round."""
        return {key: getattr(self, key) for key in TOLD}

    @property
    def begins_cluster_round(self) -> bool:
        """Whether the next communication round is the first of its cluster round: it assigns points again."""
        return self.comm_round == 0

    @property
    def assigned(self) -> bool:
        """Whether points have clusters: not before k-FED's start."""
        return self.phase != "centres"

    def after_averaging(self, changed: int, empty: list[int], diverged: list[int]) -> UIFCAState:
        """Return the state after a communication round; `changed` counts if the round began a cluster round."""
        state = replace(self, comm_round=self.comm_round + 1, empty=tuple(empty), diverged=tuple(diverged))
        if not self.begins_cluster_round:
            return state
        return replace(state, changed=changed, still=0 if changed else self.still + 1)

    def next_cluster_round(self) -> UIFCAState:
        """Return the state at the beginning of the next cluster round."""
        return replace(self, cluster_round=self.cluster_round + 1, comm_round=0)
