"""IFCA on unlabelled data: K flows, and each client trains the one under which all of its points are likeliest.

What UIFCA generalises from clients to points: here a client's points share one cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from shoal.core.setting import setting
from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Assignment
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.clustering import cluster_scores
from shoal.methods.uifca.flow_method import FlowMethod, FlowSettings


@dataclass(frozen=True)
class IFCAFlowsSettings(FlowSettings):
    """Hyper-parameters of IFCA on flows."""

    first: Literal["dealt", "lowest"] = setting(
        "dealt",
        "the flow that a client first trains: dealt, so that the K flows begin on different clients; or lowest, the "
        "one under which its points are likeliest, which is the same for all clients while the flows are alike",
    )


class IFCAFlows(FlowMethod):
    """IFCA with flows as a method; a flow that nobody chose stays as it is.

    The K starts are one function but for a little noise, and then the likeliest is the same for everybody: all clients
    would train one flow. So every client is dealt a flow, and trains that one until somebody's training of it counts.
    """

    name = "ifca_flows"
    Settings = IFCAFlowsSettings
    settings: IFCAFlowsSettings
    averages_parts = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """The K starts; and where they are dealt, a flow for each client, as many clients to each as can be."""
        flows = self.starts()
        if self.settings.first == "lowest":
            return Server({"flows": flows})
        order = federation.streams.torch("first flows")
        dealt = torch.randperm(federation.clients, generator=order) % len(flows)
        return Server({"flows": flows}, facts={"dealt": dealt.tolist(), "trained": [0] * len(flows)})

    def broadcast(self, server: Server, client: int) -> Message:
        """All K flows; and the client's own, while nobody has trained that."""
        facts: dict[str, Any] = {}
        if "dealt" in server.facts:
            own = server.facts["dealt"][client]
            facts = {} if server.facts["trained"][own] else {"choice": own}
        return Message(server.model, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """One flow, trained from any of the K."""
        flows = server.model["flows"]
        choice = FactForm(0, len(flows) - 1, whole=True)
        flow = TensorForm(tuple(flows.shape[1:]), start=flows)
        return MessageForm({"flow": flow}, {"n": exactly(samples), "choice": choice})

    def client_update(self, message: Message, client: Client) -> Update:
        """Choose the flow with the lowest mean loss, or take the one that is dealt, and train it on all points."""
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
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
        """The flow under which a client's points have the lowest mean loss."""
        losses = self.losses(flows, client.train, client.streams).double().mean(0)
        return int(losses.nan_to_num(nan=float("inf")).argmin())

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of each flow over those who chose it, by number of points."""
        flows = server.model["flows"]
        means = [mean_by(self.context.aggregation, {"flow": flow}) for flow in flows]
        for update in updates:
            means[update.message.facts["choice"]].add(update.message.tensors, float(update.message.facts["n"]))
        rows = [mean.mean()["flow"] if mean.weight else old for mean, old in zip(means, flows, strict=True)]
        facts = dict(server.facts)
        if "trained" in facts:
            facts["trained"] = [
                int(bool(before or mean.weight)) for before, mean in zip(facts["trained"], means, strict=True)
            ]
        return server.next({"flows": torch.stack(rows)}, facts=facts)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Purity, ACC, NMI and ARI where each point has its client's choice."""
        if not server.round:
            return {}
        found, truth = [], []
        for client in clients:
            found.append(torch.full((len(client.train),), self.choice(server.model["flows"], client)))
            if client.train.data.train_y is not None:
                truth.append(client.train.y().cpu())
        cluster = torch.cat(found)
        metrics = {"clusters_used": float(len(cluster.unique()))}
        return metrics | (cluster_scores(torch.cat(truth).numpy(), cluster.numpy()) if truth else {})

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """A client's points have its choice, test samples the flow under which each is likeliest."""
        index = [client.train.index for client in clients]
        chosen = [torch.full_like(client.train.index, self.choice(server.model["flows"], client)) for client in clients]
        held = (torch.cat(index), torch.cat(chosen))
        return assign_samples(self.predictor(server), evaluation, None, held=held)
