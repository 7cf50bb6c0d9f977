"""UIFCA with tries, a variant of ours: several random first assignments, each learned for a few cluster rounds.

A try ends with a round that judges it: clients assign their points by its flows, send the summed loss, and remember the
assignment. The server keeps the flows of each try (both under `try/NUMBER`), begins the next try at the common starts,
and after the last one continues with the try of the lowest mean loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import FactForm, MessageForm, exactly
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.uifca.averaged import Averaged
from shoal.methods.uifca.state import UIFCAState
from shoal.methods.uifca.uifca import UIFCA, Assigned, UIFCASettings, assignment_round

PREFIX = "try/"
MAX_LOSS = 1e30
"""Replaces a loss that is not finite: such a try is never the best, and the sum stays finite."""


UNDECIDED = -1
"""`chosen` while no try has been chosen."""


class Try(NamedTuple):
    """The result of one random first assignment: the mean loss of its points, and whether it had settled."""

    loss: float
    settled: bool


@dataclass(frozen=True)
class Tries:
    """What the server notes of tries, beside `UIFCAState`, and tells the clients but for `tried`, of which the number.

    Attributes:
        began: the first cluster round of the present try.
        tried: the judged tries, in order.
        chosen: the try that the run continues with; `UNDECIDED` before one is chosen.
    """

    began: int = 0
    tried: tuple[Try, ...] = ()
    chosen: int = UNDECIDED

    @classmethod
    def from_server(cls, server: Server) -> Tries:
        """Read the notes from a server's facts."""
        facts = server.facts
        tried = tuple(Try(*one) for one in facts.get("tried", ()))
        return cls(facts.get("began", 0), tried, facts.get("chosen", UNDECIDED))

    def facts(self) -> dict[str, Any]:
        """Return the notes as JSON values."""
        return {"began": self.began, "tried": [list(one) for one in self.tried], "chosen": self.chosen}

    def told(self) -> dict[str, Any]:
        """Return what clients are told."""
        return {"began": self.began, "chosen": self.chosen, "try": len(self.tried)}


@dataclass(frozen=True)
class JudgeReport:
    """A client's facts after it judged a try.

    Attributes:
        loss: -log p of its points under the flows of their clusters, summed, in nats.
        count: number of its points.
        changed: how many of them changed their cluster by these flows.
    """

    loss: float
    count: int
    changed: int

    @classmethod
    def from_message(cls, message: Message) -> JudgeReport:
        """Read the report from a message to the server."""
        return cls(**message.facts)

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class TriedUIFCASettings(UIFCASettings):
    """Hyper-parameters of UIFCA with tries."""

    tries: int = setting(
        4,
        "number of random first assignments, each tried for `trial` cluster rounds; the run continues with the one of "
        "the lowest loss",
        ge=2,
    )
    trial: int = setting(4, "cluster rounds of each try; they count towards cluster_rounds", ge=1)


class TriedUIFCA(UIFCA):
    """UIFCA with tries as a method; a round has a further purpose, to judge a try."""

    name = "uifca_tries"
    title = "UIFCA with tries"
    about = "UIFCA that continues with the best of several random starts."
    Settings = TriedUIFCASettings
    settings: TriedUIFCASettings

    def __init__(self, settings: TriedUIFCASettings, context: Any) -> None:
        super().__init__(settings, context)
        s = settings
        if s.init != "random":
            raise MethodError("method.tries needs random first assignments: set method.init random")
        if s.tries * s.trial >= s.cluster_rounds:
            raise MethodError(
                f"method.tries {s.tries} of {s.trial} cluster rounds each leave none of method.cluster_rounds "
                f"{s.cluster_rounds}: lower method.tries or method.trial"
            )

    def broadcast(self, server: Server, client: int) -> Message:
        """Send what UIFCA does, and which try this is."""
        message = super().broadcast(server, client)
        return replace(message, facts={**message.facts, **Tries.from_server(server).told()})

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare trained flows, or a verdict on a try, by the purpose of the round."""
        if UIFCAState.from_server(server).phase == "judge":
            return judge_form(samples)
        return super().declared(server, client, samples)

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the clusters of the client's points, also those of each try."""
        return replace(super().declared_memory(server, client, samples), others=True)

    def assign(self, message: Message, client: Client) -> Assigned:
        """Assign each point once a cluster round; where a try begins, or the chosen one goes on, from its start."""
        told = UIFCAState.from_facts(message.facts)
        began = message.facts["began"]
        chosen = message.facts["chosen"]
        if chosen != UNDECIDED and of_tries(client.memory):
            cluster = client.memory.get(f"{PREFIX}{chosen}")
            if cluster is None:  # the client did not judge that try
                cluster = self.likeliest(message.tensors.get("assigning", message.tensors["flows"]), client)
            return Assigned(cluster, len(client.train))
        first = told.phase == "learn" and told.cluster_round == began
        if assignment_round(client.memory, told) < began or (first and told.begins_cluster_round):
            client = replace(client, memory={})  # no point is assigned in this try
        if first and chosen == UNDECIDED and "assignment" not in client.memory:
            return Assigned(self.first_assignment(message, client), len(client.train))
        return super().assign(message, client)

    def learn(self, message: Message, client: Client, assigned: Assigned) -> Update:
        """Learn as UIFCA does and remember the tries, or judge one."""
        if message.facts["phase"] == "judge":
            losses = self.losses(message.tensors["flows"], client.train, client.streams)
            return judge(message.facts["try"], client, losses, assigned.cluster, assigned.changed)
        update = super().learn(message, client, assigned)
        if message.facts["chosen"] != UNDECIDED:
            return update
        return replace(update, memory={**of_tries(client.memory), **(update.memory or {})})

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average each flow; then decide whether a try is over. After its judgement begin the next one."""
        s = self.settings
        if UIFCAState.from_server(server).phase == "judge":
            return conclude_try(server, updates, s.tries, self.starts(), self.partial)
        tries = Tries.from_server(server)
        after = super().aggregate(server, updates)
        state = UIFCAState.from_server(after)
        if tries.chosen != UNDECIDED:
            return replace(after, facts={**after.facts, **tries.facts()})
        ends = after.finished or state.cluster_round - tries.began == s.trial
        facts = replace(state, phase="judge" if ends else "learn").facts()
        return replace(after, facts={**facts, **tries.facts()}, finished=False)

    def kept_tensors(self, server: Server, state: UIFCAState, averaged: Averaged, starts: Tensor) -> Tensors:
        """Return the server's tensors that outlast a round, those of tries included."""
        return of_tries(server.state) | super().kept_tensors(server, state, averaged, starts)


def judge_form(samples: int) -> MessageForm:
    """Declare a verdict on a try, see `JudgeReport`."""
    bound = MAX_LOSS * max(1, samples)
    facts = {
        "loss": FactForm(-bound, bound),
        "count": exactly(samples),
        "changed": FactForm(0, samples, whole=True),
    }
    return MessageForm({}, facts)


def of_tries(tensors: Tensors) -> Tensors:
    """Return the tensors of a client or the server that belong to tries."""
    return {key: value for key, value in tensors.items() if key.startswith(PREFIX)}


def judge(trial: int, client: Client, losses: Tensor, clusters: Tensor, changed: int) -> Update:
    """Return a client's verdict on a try.

    Args:
        trial: number of the try.
        client: the client that judges.
        losses: -log p of its points under each flow, (n, K).
        clusters: their clusters by these flows, int64 (n,); remembered until a try is chosen.
        changed: how many points changed their cluster.
    """
    losses = losses.nan_to_num(nan=MAX_LOSS, posinf=MAX_LOSS)
    loss = float(losses.gather(1, clusters[:, None]).double().sum())
    memory = {**client.memory, f"{PREFIX}{trial}": clusters}
    return Update(Message({}, JudgeReport(loss, len(clusters), changed).facts()), memory=memory)


def conclude_try(server: Server, updates: Iterable[Update], tries: int, starts: Tensor, partial: bool) -> Server:
    """Begin the next try after one has been judged; after the last, continue with the best.

    Args:
        server: the state, with the flows of the try.
        updates: the clients' verdicts.
        tries: number of tries.
        starts: the common starts of the flows, (K, p).
        partial: whether clients may miss the next round; they are then assigned by its flows later.
    """
    state = UIFCAState.from_server(server)
    reports = [JudgeReport.from_message(update.message) for update in updates]
    changed = sum(report.changed for report in reports)
    loss = sum(report.loss for report in reports) / sum(report.count for report in reports)
    tried = (*Tries.from_server(server).tried, Try(loss, settled=not changed))
    state = replace(state, phase="learn", comm_round=0, still=0, changed=changed)
    noted = Tries(state.cluster_round, tried)
    by_try = {**of_tries(server.state), f"{PREFIX}{len(tried) - 1}": server.model["flows"]}
    if len(tried) < tries:
        return server.next({"flows": starts}, state=by_try, facts={**state.facts(), **noted.facts()})
    best = min(range(len(tried)), key=lambda number: tried[number].loss)
    facts = {**state.facts(), **replace(noted, chosen=best).facts()}
    flows = by_try[f"{PREFIX}{best}"]
    kept = {"assigning": flows} if partial else {}
    return server.next({"flows": flows}, state=kept, facts=facts, finished=tried[best].settled)
