"""CF-CL's server state and its plan: when devices push, pull and train, and what they are told (algorithm 1).

A round of the engine is a push, a pull, or a stretch of local steps up to the next averaging or pull.
On disk and on the link states are JSON values; their keys stay as they are, so that a run folder resumes.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from shoal.data.topology import Edges
from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message

Action = Literal["push", "pull", "train", "end"]


@dataclass(frozen=True)
class CFCLState:
    """The server's facts between rounds; the last average is `Server.model["weights"]`.

    Attributes:
        step: local steps done, t.
        next: what the next round is.
        behind: devices that have not been sent the last average yet.
        averagings: how many there have been.
        clients: how many devices there are.
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
        """The state in a server's facts."""
        f = server.facts
        edges = tuple((int(i), int(j)) for i, j in f["edges"])
        return cls(f["step"], f["next"], tuple(f["behind"]), f["averagings"], f["clients"], edges)

    def facts(self) -> dict[str, Any]:
        """The state as JSON values, as they lie on disk."""
        return vars(self) | {"behind": list(self.behind), "edges": [list(edge) for edge in self.edges]}

    @property
    def just_averaged(self) -> bool:
        """Whether the last round ended in an average, which no device has been sent yet."""
        return len(self.behind) == self.clients

    def averaged(self) -> CFCLState:
        """The state after an average, which every device must be sent."""
        return replace(self, behind=tuple(range(self.clients)), averagings=self.averagings + 1)

    def told(self, here: Set[int]) -> CFCLState:
        """The state after a round without an average: a device that took part has the last one."""
        return replace(self, behind=tuple(client for client in self.behind if client not in here))


@dataclass(frozen=True)
class Plan:
    """When devices pull and when the server averages.

    Attributes:
        selection: what is pulled: by importance (`cfcl`), uniformly, or nothing (`none`).
        steps: local steps in all, T.
        tau_a, tau_p: local steps between two averagings, and between two pulls.
    """

    selection: Literal["cfcl", "uniform", "none"]
    steps: int
    tau_a: int
    tau_p: int

    def first(self, linked: bool) -> Action:
        """What a run begins with: only importance needs reserves, so that a uniform pull comes without a push."""
        if not linked or self.selection == "none":
            return "train"
        return "push" if self.selection == "cfcl" else "pull"

    def stretch(self, step: int) -> int:
        """Local steps from `step` until the next averaging, pull or end."""
        until = [self.tau_a - step % self.tau_a, self.steps - step]
        if self.selection != "none":
            until.append(self.tau_p - step % self.tau_p)
        return min(until)

    def following(self, step: int, done: Action, linked: bool) -> Action:
        """What comes after a round.

        Args:
            step: local steps done.
            done: what the round was.
            linked: whether any link carries something at this step.
        """
        if step >= self.steps:
            return "end"
        due = self.selection != "none" and linked and step % self.tau_p == 0
        return "pull" if due and done != "pull" else "train"


@dataclass(frozen=True)
class Instruction:
    """The server's facts to one device.

    Attributes:
        step, next, averagings: see `CFCLState`.
        near: the neighbours that a link carries something to.
        steps: where it is to train, how many local steps; None otherwise (and then not sent).
    """

    step: int
    next: Action
    averagings: int
    near: tuple[int, ...]
    steps: int | None = None

    @classmethod
    def from_message(cls, message: Message) -> Instruction:
        """The instruction in a message from the server."""
        f = message.facts
        return cls(f["step"], f["next"], f["averagings"], tuple(f["near"]), f.get("steps"))

    def facts(self) -> dict[str, Any]:
        """The instruction as JSON values."""
        facts = vars(self) | {"near": list(self.near)}
        return {key: value for key, value in facts.items() if value is not None}
