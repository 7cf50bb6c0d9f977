"""CF-CL's server state, and the graph of its devices.

A round of the engine is a push, a pull, or a stretch of local steps up to the next averaging or pull.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from shoal.data.partition.topology import Edges, check_edges, neighbours, random_geometric_graph
from shoal.methods.contract.base import Server

Action = Literal["push", "pull", "train", "end"]
Selection = Literal["cfcl", "uniform", "none"]
"""How pulled samples are chosen: by importance under the last global model, uniformly, or not at all."""


@dataclass(frozen=True)
class CFCLState:
    """The server's facts between rounds; the last average is `Server.model["weights"]`.

    Attributes:
        step: number of local steps done, t.
        next: the action of the next round.
        behind: ids of the devices that have not been sent the last average yet.
        averagings: number of averagings done.
        clients: number of devices.
        edges: the graph's links (i, j), i < j.
    """

    step: int
    next: Action
    behind: tuple[int, ...]
    averagings: int
    clients: int
    edges: Edges

    @classmethod
    def from_server(cls, server: Server) -> CFCLState:
        """Return the state in a server's facts."""
        f = server.facts
        edges = tuple((int(i), int(j)) for i, j in f["edges"])
        return cls(f["step"], f["next"], tuple(f["behind"]), f["averagings"], f["clients"], edges)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return vars(self) | {"behind": list(self.behind), "edges": [list(edge) for edge in self.edges]}

    def neighbours(self, device: int) -> tuple[int, ...]:
        """Return the ids of a device's neighbours, ascending."""
        return tuple(neighbours(self.clients, self.edges)[device])

    @property
    def just_averaged(self) -> bool:
        """Whether the last round ended in an average, which no device has been sent yet."""
        return len(self.behind) == self.clients

    def with_average(self) -> CFCLState:
        """Return the state after an average, which every device must be sent."""
        return replace(self, behind=tuple(range(self.clients)), averagings=self.averagings + 1)

    def without_average(self, participants: Set[int]) -> CFCLState:
        """Return the state after a round without an average: its participants were sent the last one."""
        return replace(self, behind=tuple(client for client in self.behind if client not in participants))


def build_graph(devices: int, edges: Sequence[tuple[int, int]], degree: float, rng: np.random.Generator) -> Edges:
    """Return the links (i, j), i < j, of the settings, or those of a random geometric graph.

    Args:
        devices: number of devices.
        edges: the links of the settings; empty: draw them.
        degree: wanted average degree of a drawn graph; at most all others.
        rng: draws the graph.

    Raises:
        DataError: a graph that cannot be.
    """
    if edges:
        return check_edges(devices, edges)
    if devices == 1:
        return ()
    return random_geometric_graph(devices, min(degree, devices - 1), rng)
