"""CFL's server state. On disk it is JSON values; their keys stay as they are, so that a run folder resumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.methods.cfl.measure import ClusterMeasure
from shoal.methods.cfl.tree import Tree
from shoal.methods.contract.base import Server


@dataclass(frozen=True)
class CFLState:
    """The server's facts between rounds; its tensors are those of the tree (`shoal.methods.cfl.tree`).

    Attributes:
        tree: the clusters and how they came to be; a copy that may be changed.
        size: how many of the numbers in a weight vector are parameters; the rest are statistics of layers.
        clients: how many there are in all, those that come later or have left counted.
        truth: the planted group of each client; empty where none is planted.
        peak: the largest median norm of any cluster so far.
        log: what was measured of each cluster in the last round.
    """

    tree: Tree
    size: int
    clients: int
    truth: tuple[int, ...] = ()
    peak: float = 0.0
    log: tuple[ClusterMeasure, ...] = ()

    @classmethod
    def from_server(cls, server: Server) -> CFLState:
        """The state in a server's facts."""
        f = server.facts
        log = tuple(ClusterMeasure.from_facts(entry) for entry in f["log"])
        return cls(Tree.from_facts(f), f["size"], f["clients"], tuple(f["truth"]), f["peak"], log)

    def facts(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            **self.tree.facts(),
            "size": self.size,
            "clients": self.clients,
            "truth": list(self.truth),
            "peak": self.peak,
            "log": [measure.entry() for measure in self.log],
        }
