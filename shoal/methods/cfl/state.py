"""CFL's server state. On disk it is JSON values; their keys are fixed, so that a run folder can be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class CFLState:
    """The server's facts between rounds; its tensors are those of the tree (`shoal.methods.cfl.tree`).

    Attributes:
        tree: the clusters and how they came to be; a copy that may be changed.
        size: how many of the numbers in a weight vector are parameters; the rest are statistics of layers.
        clients: number of all clients.
        truth: the planted group of each client; empty where none is planted.
        peak: the largest median norm of any cluster so far.
        log: the measures of each cluster in the last round (`ClusterMeasure.entry`).
    """

    tree: Tree
    size: int
    clients: int
    truth: tuple[int, ...] = ()
    peak: float = 0.0
    log: tuple[Any, ...] = ()

    @classmethod
    def from_server(cls, server: Server) -> CFLState:
        """Read the state from a server's facts."""
        facts = server.facts
        truth = tuple(facts["truth"])
        return cls(Tree.from_facts(facts), facts["size"], facts["clients"], truth, facts["peak"], tuple(facts["log"]))

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            **self.tree.facts(),
            "size": self.size,
            "clients": self.clients,
            "truth": list(self.truth),
            "peak": self.peak,
            "log": list(self.log),
        }
