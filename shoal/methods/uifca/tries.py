"""`tries`: several random first assignments, each learned for a few cluster rounds; the run continues with the best.

A try ends with a round that judges it: clients assign their points by its flows, send the summed loss, and remember the
assignment. The server keeps the flows of each try (both under `try/NUMBER`), begins the next try at the common starts,
and after the last one continues with the try of the lowest mean loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from shoal.methods.contract.base import Client, Server, Update
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.uifca.state import Instruction, Try, UIFCAState

PREFIX = "try/"
MAX_LOSS = 1e30
"""Replaces a loss that is not finite: such a try is never the best, and the sum stays finite."""


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


def of_tries(tensors: Tensors) -> Tensors:
    """Return the tensors of a client or the server that belong to tries."""
    return {key: value for key, value in tensors.items() if key.startswith(PREFIX)}


def judge(instruction: Instruction, client: Client, losses: Tensor, clusters: Tensor, changed: int) -> Update:
    """Return a client's verdict on a try.

    Args:
        instruction: of the round.
        client: the client that judges.
        losses: -log p of its points under each flow, (n, K).
        clusters: their clusters by these flows, int64 (n,); remembered until a try is chosen.
        changed: how many points changed their cluster.
    """
    losses = losses.nan_to_num(nan=MAX_LOSS, posinf=MAX_LOSS)
    loss = float(losses.gather(1, clusters[:, None]).double().sum())
    memory = {**client.memory, f"{PREFIX}{instruction.trial}": clusters}
    return Update(Message({}, JudgeReport(loss, len(clusters), changed).facts()), memory=memory)


def returns_to_chosen(instruction: Instruction, client: Client) -> bool:
    """Return whether this round begins from the chosen try, and the client still remembers its tries."""
    return instruction.decided and bool(of_tries(client.memory))


def chosen_assignment(instruction: Instruction, client: Client) -> Tensor | None:
    """Return the client's assignment of the chosen try, int64 (n,); None if it did not judge that try."""
    return client.memory.get(f"{PREFIX}{instruction.chosen}")


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
    tried = (*state.tried, Try(loss, settled=not changed))
    state = replace(
        state, tried=tried, phase="learn", comm_round=0, still=0, changed=changed, began=state.cluster_round
    )
    by_try = {**of_tries(server.state), f"{PREFIX}{len(tried) - 1}": server.model["flows"]}
    if len(tried) < tries:
        return server.next({"flows": starts}, state=by_try, facts=state.facts())
    best = min(range(len(tried)), key=lambda number: tried[number].loss)
    state = replace(state, chosen=best)
    flows = by_try[f"{PREFIX}{best}"]
    kept = {"assigning": flows} if partial else {}
    return server.next({"flows": flows}, state=kept, facts=state.facts(), finished=tried[best].settled)
