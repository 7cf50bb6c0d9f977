"""What crosses the network in UIFCA, typed: the server's state, its instructions to clients, and what they report.

On disk and on the link these are JSON values (`Server.facts`, `Message.facts`); their keys stay as they are, so that
a run folder resumes, and every number that travels is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from shoal.methods.contract.base import Server
from shoal.methods.contract.message import Message

Phase = Literal["centres", "learn", "judge"]
"""What a round is for: gathering the centres of k-FED's start, learning flows, or judging a try by its losses."""
UNDECIDED = -1
"""`chosen` while no try has been chosen."""


class Try(NamedTuple):
    """How one random first assignment did: the mean loss of its points, and whether its assignment had settled."""

    loss: float
    settled: bool


@dataclass(frozen=True)
class UIFCAState:
    """The server's facts between rounds; the flows themselves are `Server.model["flows"]`, (K, p).

    Attributes:
        phase: what the next round is for.
        cluster_round: cluster rounds done (t of algorithm 2), those of all tries counted.
        comm_round: communication rounds done within the present cluster round (l of algorithm 3).
        still: assignments in a row in which no point changed its cluster.
        empty: flows that had no point in the last round.
        diverged: flows that had points in the last round, and no finite result from any client.
        changed: points that changed their cluster at the start of the present cluster round; -1 before the first.
        began: the cluster round with which the present try began.
        tried: the tries that have been judged, in order.
        chosen: the try that goes on; `UNDECIDED` before one is chosen.
        clients: how many there are.
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
        """The state in a server's facts."""
        facts = dict(server.facts)
        for key in ("empty", "diverged", "current"):
            facts[key] = tuple(facts.get(key, ()))
        facts["tried"] = tuple(Try(*one) for one in facts["tried"])
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """The state as JSON values, as they lie on disk."""
        facts = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return facts | {"tried": [list(one) for one in self.tried]}

    @property
    def begins_cluster_round(self) -> bool:
        """Whether the next communication round is the first of its cluster round: there points are assigned anew."""
        return self.comm_round == 0

    @property
    def assigned(self) -> bool:
        """Whether any point has had a cluster: not before k-FED's start is there."""
        return self.phase != "centres"

    @property
    def decided(self) -> bool:
        """Whether the try that goes on has been chosen."""
        return self.chosen != UNDECIDED

    def after_averaging(self, changed: int, empty: list[int], diverged: list[int]) -> UIFCAState:
        """One more communication round is done; `changed` counts where the round began a cluster round."""
        state = replace(self, comm_round=self.comm_round + 1, empty=tuple(empty), diverged=tuple(diverged))
        if not self.begins_cluster_round:
            return state
        state = replace(state, changed=changed)
        # The first assignment of a try has no assignment before it that it could equal.
        if self.cluster_round > self.began:
            state = replace(state, still=0 if changed else self.still + 1)
        return state

    def after_part(self, clients: list[int], changed: int, empty: list[int], diverged: list[int]) -> UIFCAState:
        """One more communication round is done, of some of the clients; who was assigned before has not changed."""
        state = replace(self, comm_round=self.comm_round + 1, empty=tuple(empty), diverged=tuple(diverged))
        if self.begins_cluster_round:
            return replace(state, changed=changed, current=tuple(sorted(clients)))
        current = tuple(sorted({*self.current, *clients}))
        return replace(state, changed=self.changed + changed, current=current)

    def after_parts(self) -> UIFCAState:
        """A cluster round of parts is done: only with all clients in it can no change mean that it has settled."""
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
        """What clients are told in the round that follows a state."""
        return cls(
            state.phase, state.cluster_round, state.comm_round, state.began, state.chosen, trial=len(state.tried)
        )

    @classmethod
    def from_message(cls, message: Message) -> Instruction:
        """The instruction in a message from the server."""
        facts = dict(message.facts)
        return cls(trial=facts.pop("try"), **facts)

    def facts(self) -> dict[str, Any]:
        """The instruction as JSON values: six facts."""
        facts = dict(vars(self))
        return {"try": facts.pop("trial"), **facts}

    @property
    def begins_cluster_round(self) -> bool:
        """Whether points are assigned anew in this round."""
        return self.comm_round == 0

    @property
    def first_of_try(self) -> bool:
        """Whether this is the first cluster round of a try: no flows have been learned in it."""
        return self.phase == "learn" and self.cluster_round == self.began

    @property
    def begins_try(self) -> bool:
        """Whether this round's assignment is the first one of a try."""
        return self.first_of_try and self.begins_cluster_round

    @property
    def decided(self) -> bool:
        """Whether the server has chosen the try that goes on."""
        return self.chosen != UNDECIDED


@dataclass(frozen=True)
class LearnReport:
    """A client's facts after it learned, beside its trained flows `flow/K`. A number for each of the K flows, but one.

    Attributes:
        counts: points that flow k was trained on; 0 where it had none, or diverged: the weight of its average.
        points: points that flow k had, those of diverged flows counted.
        changed: how many of the client's points changed their cluster in this round (one number).
        held_loss: with `stop: validation`, the summed -log p of the cluster's held-out points under flow k; else empty.
        held_count: how many held-out points that were; else empty.
    """

    counts: tuple[int, ...]
    points: tuple[int, ...]
    changed: int
    held_loss: tuple[float, ...] = ()
    held_count: tuple[int, ...] = ()

    @classmethod
    def from_message(cls, message: Message) -> LearnReport:
        """The report in a message to the server."""
        facts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in message.facts.items()}
        return cls(**facts)

    def facts(self) -> dict[str, Any]:
        """The report as JSON values; without held-out points nothing of them travels."""
        facts = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return {key: value for key, value in facts.items() if value != []}
