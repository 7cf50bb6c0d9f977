"""The facts of UIFCA, typed: the server's state, and its instructions to clients.

On disk and on the link they are JSON values (`Server.facts`, `Message.facts`). Their keys are fixed, so that a run
folder can be resumed, and every number that travels is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message

Phase = Literal["centres", "learn", "judge"]
"""Purpose of a round: collect the centres of k-FED's start, learn flows, or judge a try by its losses."""
UNDECIDED = -1
"""`chosen` while no try has been chosen."""


class Try(NamedTuple):
    """The result of one random first assignment: the mean loss of its points, and whether it had settled."""

    loss: float
    settled: bool


@dataclass(frozen=True)
class UIFCAState:
    """The server's facts between rounds; the flows themselves are `Server.model["flows"]`, (K, p).

    Attributes:
        phase: purpose of the next round.
        cluster_round: finished cluster rounds (t of algorithm 2), including those of all tries.
        comm_round: finished communication rounds of the present cluster round (l of algorithm 3).
        still: assignments in a row in which no point changed its cluster.
        empty: flows that had no point in the last round.
        diverged: flows that had points in the last round, and no finite result from any client.
        changed: points that changed their cluster at the start of the present cluster round; -1 before the first.
        began: the first cluster round of the present try.
        tried: the judged tries, in order.
        chosen: the try that the run continues with; `UNDECIDED` before one is chosen.
        clients: number of clients.
        current: where not all clients take part, those whose points have been assigned in the present cluster round.
    """

    phase: Phase
    cluster_round: int = 0
    comm_round: int = 0
    still: int = 0
    empty: tuple[int, ...] = ()
    diverged: tuple[int, ...] = ()
    changed: int = -1
    began: int = 0
    tried: tuple[Try, ...] = ()
    chosen: int = UNDECIDED
    clients: int = 0
    current: tuple[int, ...] = ()

    @classmethod
    def from_server(cls, server: Server) -> UIFCAState:
        """Read the state from a server's facts."""
        facts = dict(server.facts)
        for key in ("empty", "diverged", "current"):
            facts[key] = tuple(facts.get(key, ()))
        facts["tried"] = tuple(Try(*one) for one in facts["tried"])
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        facts = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return facts | {"tried": [list(one) for one in self.tried]}

    @property
    def begins_cluster_round(self) -> bool:
        """Whether the next communication round is the first of its cluster round: it assigns points again."""
        return self.comm_round == 0

    @property
    def assigned(self) -> bool:
        """Whether points have clusters: not before k-FED's start."""
        return self.phase != "centres"

    @property
    def decided(self) -> bool:
        """Whether a try has been chosen."""
        return self.chosen != UNDECIDED

    def after_averaging(self, changed: int, empty: list[int], diverged: list[int]) -> UIFCAState:
        """Return the state after a communication round; `changed` counts if the round began a cluster round."""
        state = replace(self, comm_round=self.comm_round + 1, empty=tuple(empty), diverged=tuple(diverged))
        if not self.begins_cluster_round:
            return state
        state = replace(state, changed=changed)
        # The first assignment of a try has no earlier assignment to compare with.
        if self.cluster_round > self.began:
            state = replace(state, still=0 if changed else self.still + 1)
        return state

    def after_part(self, clients: list[int], changed: int, empty: list[int], diverged: list[int]) -> UIFCAState:
        """Return the state after a communication round of some clients; assigned clients keep their clusters."""
        state = replace(self, comm_round=self.comm_round + 1, empty=tuple(empty), diverged=tuple(diverged))
        if self.begins_cluster_round:
            return replace(state, changed=changed, current=tuple(sorted(clients)))
        current = tuple(sorted({*self.current, *clients}))
        return replace(state, changed=self.changed + changed, current=current)

    def next_cluster_round(self) -> UIFCAState:
        """Return the state at the beginning of the next cluster round."""
        return replace(self, cluster_round=self.cluster_round + 1, comm_round=0, current=())

    def after_parts(self) -> UIFCAState:
        """Return the state after a cluster round of parts: it has settled only if all clients took part unchanged."""
        if self.cluster_round == self.began:
            return self
        return replace(self, still=0 if self.changed or len(self.current) < self.clients else self.still + 1)


@dataclass(frozen=True)
class Instruction:
    """The server's facts to every client of a round.

    Attributes:
        phase, cluster_round, comm_round, began, chosen: see `UIFCAState`.
        trial: the number of the present try (on the link: `try`).
    """

    phase: Phase
    cluster_round: int
    comm_round: int
    began: int
    chosen: int
    trial: int

    @classmethod
    def from_state(cls, state: UIFCAState) -> Instruction:
        """Return the instruction for the round that follows a state."""
        return cls(
            state.phase, state.cluster_round, state.comm_round, state.began, state.chosen, trial=len(state.tried)
        )

    @classmethod
    def from_message(cls, message: Message) -> Instruction:
        """Read the instruction from a message of the server."""
        facts = dict(message.facts)
        return cls(trial=facts.pop("try"), **facts)

    def facts(self) -> dict[str, Any]:
        """Return the instruction as JSON values: six facts."""
        facts = dict(vars(self))
        return {"try": facts.pop("trial"), **facts}

    @property
    def begins_cluster_round(self) -> bool:
        """Whether this round assigns points again."""
        return self.comm_round == 0

    @property
    def first_of_try(self) -> bool:
        """Whether this is the first cluster round of a try, in which no flow has been learned."""
        return self.phase == "learn" and self.cluster_round == self.began

    @property
    def begins_try(self) -> bool:
        """Whether this round's assignment is the first one of a try."""
        return self.first_of_try and self.begins_cluster_round

    @property
    def decided(self) -> bool:
        """Whether the server has chosen the try that goes on."""
        return self.chosen != UNDECIDED
