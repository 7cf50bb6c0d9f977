"""CF-CL's server state and its plan: the graph, and when devices push, pull and train (algorithm 1).

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


@dataclass(frozen=True)
class Plan:
    """When devices pull and when the server averages.

    Attributes:
        selection: how pulled samples are chosen.
        steps: total number of local steps, T.
        tau_a, tau_p: number of local steps between two averagings, and between two pulls.
    """

    selection: Selection
    steps: int
    tau_a: int
    tau_p: int

    @property
    def by_importance(self) -> bool:
        """Whether a pull chooses samples by their importance, which needs reserves."""
        return self.selection == "cfcl"

    def first(self, linked: bool) -> Action:
        """Return the action of round 1: a push where reserves are needed, a pull, or training without any exchange."""
        if not linked or self.selection == "none":
            return "train"
        return "push" if self.by_importance else "pull"

    def stretch(self, step: int) -> int:
        """Return the number of local steps from `step` to the next averaging, pull or end."""
        until = [self.tau_a - step % self.tau_a, self.steps - step]
        if self.selection != "none":
            until.append(self.tau_p - step % self.tau_p)
        return min(until)

    def step_after(self, state: CFCLState) -> int:
        """Return the number of local steps done once the round after `state` is over."""
        return state.step + (self.stretch(state.step) if state.next == "train" else 0)

    def averages_at(self, step: int) -> bool:
        """Return whether the server averages after this number of local steps."""
        return step % self.tau_a == 0 or step == self.steps

    def next_action(self, step: int, done: Action, linked: bool) -> Action:
        """Return the action after a round.

        Args:
            step: number of local steps done.
            done: the action of the round.
            linked: whether the graph has any link.
        """
        if step >= self.steps:
            return "end"
        due = self.selection != "none" and linked and step % self.tau_p == 0
        return "pull" if due and done != "pull" else "train"


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
