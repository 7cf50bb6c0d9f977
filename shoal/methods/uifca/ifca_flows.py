"""IFCA on unlabelled data: K flows; each client trains the flow under which all of its points are likeliest.

UIFCA generalises this from clients to points: here all points of a client share one cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from shoal.methods.averaging.chosen_models import average_by_choice, declared_choice
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Assignment
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples, assignment_metrics
from shoal.methods.uifca.flow_method import FlowMethod, FlowSettings


class IFCAFlowsSettings(FlowSettings):
    """Hyper-parameters of IFCA on flows."""


class IFCAFlows(FlowMethod):
    """IFCA with flows as a method; a flow that nobody chose stays as it is.

    The K starts differ by a little noise only, so that the same flow would be the likeliest for all clients, and all
    would train it. Therefore every client is dealt a flow, and trains that flow until it has been trained once.
    """

    name = "ifca_flows"
    title = "IFCA with flows"
    question = Question.GENERATORS
    about = "A flow for each cluster of clients, instead of samples."
    Settings = IFCAFlowsSettings
    settings: IFCAFlowsSettings
    averages_parts = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """Return the K starts, and deal every client a flow: each flow to about as many clients."""
        flows = self.starts()
        generator = federation.streams.torch("first flows")
        dealt = torch.randperm(federation.clients, generator=generator) % len(flows)
        return Server({"flows": flows}, facts={"dealt": dealt.tolist(), "trained": [0] * len(flows)})

    def broadcast(self, server: Server, client: int) -> Message:
        """Send all K flows, and the number of the dealt flow while nobody has trained it."""
        dealt = server.facts["dealt"][client]
        facts: dict[str, Any] = {} if server.facts["trained"][dealt] else {"choice": dealt}
        return Message(server.model, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare one flow that was trained from any of the K."""
        return declared_choice(server.model["flows"], "flow", samples)

    def client_update(self, message: Message, client: Client) -> Update:
        """Choose the flow with the lowest mean loss, or take the dealt one, and train it on all points."""
        client.check_samples()
        flows = message.tensors["flows"]
        dealt = message.facts.get("choice")
        choice = self.choice(flows, client) if dealt is None else int(dealt)
        every = torch.arange(len(client.train)).to(client.train.index.device)
        fitted = self.fit(flows[choice], every, client, choice, client.streams.round)
        if fitted is None:
            raise ClientError(f"client {client.id}: its flow diverged in round {client.streams.round}; lower local.lr")
        sent = Message({"flow": fitted[0]}, {"n": len(client.train), "choice": choice})
        return Update(sent, metrics={"loss": fitted[1], "choice": float(choice)})

    def choice(self, flows: torch.Tensor, client: Client) -> int:
        """Return the flow under which a client's points have the lowest mean loss."""
        losses = self.losses(flows, client.train, client.streams).double().mean(0)
        return int(losses.nan_to_num(nan=float("inf")).argmin())

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average each flow over the clients that chose it, by number of points."""
        flows, chosen = average_by_choice(updates, server.model["flows"], "flow", self.context.aggregation)
        trained = [max(before, int(k in chosen)) for k, before in enumerate(server.facts["trained"])]
        return server.next({"flows": flows}, facts={**server.facts, "trained": trained})

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of `assignment`."""
        if not server.round:
            return {}
        return assignment_metrics(self.assignment(server, clients, evaluation), evaluation)

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Assign a client's points to its choice, and test samples to their likeliest flow."""
        index = [client.train.index for client in clients]
        chosen = [torch.full_like(client.train.index, self.choice(server.model["flows"], client)) for client in clients]
        own_clusters = (torch.cat(index), torch.cat(chosen))
        return assign_samples(self.predictor(server), evaluation, own_clusters=own_clusters)
