"""UIFCA: unsupervised iterative federated clustering, one normalising flow per cluster.

In a cluster round (algorithm 2) K flows are learned by federated averaging over some communication rounds (algorithm
3): each client trains every flow on its points of that cluster (algorithm 4). Then every client assigns each point to
the flow under which it is likeliest. The cluster of a point never leaves the client.

A round of the engine is one communication round. Where a cluster round begins, clients assign before they learn.
With `init: kfed` a round before these collects k-FED's first assignment (`kfed`). docs/methods.md lists where this
departs from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Assignment
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples, assignment_metrics
from shoal.methods.uifca.averaged import average
from shoal.methods.uifca.declared import beyond_centres, centres_form, learn_form, memory_form
from shoal.methods.uifca.flow_method import FlowMethod, FlowSettings
from shoal.methods.uifca.kfed import gather_centres, kfed_assignment, send_centres
from shoal.methods.uifca.quality import CurrentAssignment, point_scores
from shoal.methods.uifca.state import UIFCAState
from shoal.models.normalising_flows import bits_per_dimension

MIN_POINTS = 2
"""A local centre of k-FED's start is the mean of so many points at least."""


@dataclass(frozen=True)
class UIFCASettings(FlowSettings):
    """Hyper-parameters of UIFCA."""

    cluster_rounds: int = setting(20, "number of cluster rounds T", ge=1)
    comm_rounds: int = setting(100, "communication rounds tau of each cluster round", ge=1)
    warm_start: bool = setting(
        False, "begin each cluster round from the flows of the last one instead of the common start"
    )
    init: Literal["random", "kfed"] = setting(
        "random", "first assignment of the points: random, or the one that k-FED finds"
    )


class PointClusters(NamedTuple):
    """The cluster of each of a client's points, int64 (n,), and how many points changed theirs."""

    cluster: Tensor
    changed: int


class UIFCA(FlowMethod):
    """UIFCA as a method: the server state is K flows, rows of `flows` (K, p), and `UIFCAState`."""

    name = "uifca"
    title = "UIFCA"
    question = Question.GENERATORS
    about = "A normalising flow for each cluster; a sample belongs to the likeliest."
    Settings = UIFCASettings
    settings: UIFCASettings
    averages_parts = True
    evaluation_reads_memory = False
    of_the_server = ("cluster_round", "changed", "empty", "diverged")
    loss_note = (
        "The loss jumps after every method.comm_rounds rounds of training by design, unless method.warm_start is true: "
        "each cluster round trains its flows from the common start."
    )
    settled_after = 1
    """The run ends after so many assignments in a row in which no point changed its cluster."""

    def init_server(self, federation: Federation) -> Server:
        """Return the K starts; with `init: kfed` the first round collects local centres.

        Raises:
            MethodError: partial participation.
        """
        if self.context.fraction < 1:
            raise MethodError("uifca needs every client in every round: set participation.fraction=1")
        state = UIFCAState("centres" if self.settings.init == "kfed" else "learn", clients=federation.clients)
        return Server({"flows": self.starts()}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the flows and the purpose of the round; after k-FED's also the clusters of the client's centres."""
        state = UIFCAState.from_server(server)
        facts = state.told()
        if not state.assigned:
            return Message(facts=facts)
        tensors = {"flows": server.model["flows"]}
        if (labels := server.state.get(f"labels/{client}")) is not None:
            tensors["labels"] = labels
        return Message(tensors, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare local centres, or trained flows, by the purpose of the round."""
        phase = UIFCAState.from_server(server).phase
        if phase == "centres":
            return centres_form(self.context.clusters, math.prod(self.context.spec.shape))
        return learn_form(server.model["flows"], samples)

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the clusters of the client's points."""
        return memory_form(self.context.clusters, samples)

    def mismatch(self, update: Update) -> str | None:
        """Return the fault of a local cluster without a centre, else None: it could not be judged."""
        return beyond_centres(update)

    # --- clients --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Assign where a cluster round begins, then learn; in k-FED's round send local centres."""
        client.check_samples()
        client.finite(client.train.x().float())
        told = UIFCAState.from_facts(message.facts)
        if told.phase == "centres":
            return send_centres(client, self.context.clusters, MIN_POINTS)
        return self.learn(message, client, self.assign(message, client))

    def assign(self, message: Message, client: Client) -> PointClusters:
        """Assign each point to its likeliest flow where a cluster round begins (algorithm 2)."""
        told = UIFCAState.from_facts(message.facts)
        flows = message.tensors["flows"]
        before = client.memory.get("assignment")
        if before is None:
            # Before the first flows are learned, points begin at random.
            learned = told.begins_cluster_round and told.cluster_round > 0
            first = self.likeliest(flows, client) if learned else self.first_assignment(message, client)
            return PointClusters(first, len(client.train))
        if not told.begins_cluster_round:
            return PointClusters(before, 0)
        after = self.likeliest(flows, client)
        return PointClusters(after, int((after != before).sum()))

    def first_assignment(self, message: Message, client: Client) -> Tensor:
        """Return the start of algorithm 2: k-FED's assignment where there is one, else a random one; int64 (n,)."""
        if (by_kfed := kfed_assignment(message, client)) is not None:
            return by_kfed
        generator = client.streams.torch("assignment")
        draw = torch.randint(self.context.clusters, (len(client.train),), generator=generator)
        return draw.to(client.train.index.device)

    def likeliest(self, flows: Tensor, client: Client) -> Tensor:
        """Return the flow with the lowest loss for each of a client's points, int64 (n,)."""
        return lowest(self.losses(flows, client.train, client.streams))

    def learn(self, message: Message, client: Client, assigned: PointClusters) -> Update:
        """Train each flow on the client's points of its cluster (algorithm 4)."""
        told = UIFCAState.from_facts(message.facts)
        # Clients know the seed of the starts: these need not travel.
        restart = told.begins_cluster_round and not self.settings.warm_start
        flows = self.starts() if restart else message.tensors["flows"]
        positions = [torch.nonzero(assigned.cluster == k).squeeze(1) for k in range(len(flows))]
        # For so many communication rounds these flows have learned: the learning rate decays by them.
        learned = told.comm_round + self.settings.warm_start * told.cluster_round * self.settings.comm_rounds
        fits = {k: self.fit(flows[k], rows, client, k, learned + 1) for k, rows in enumerate(positions) if len(rows)}
        trained = {k: fit for k, fit in fits.items() if fit is not None}
        if not trained:
            raise ClientError(
                f"client {client.id}: every flow diverged in round {client.streams.round}; lower local.lr"
            )
        points = tuple(map(len, positions))
        counts = tuple(number if k in trained else 0 for k, number in enumerate(points))
        facts = {"counts": list(counts), "points": list(points), "changed": assigned.changed}
        loss = sum(loss for _, loss in trained.values()) / len(trained)
        metrics = {"loss": loss, "changed": float(assigned.changed), "trained": float(len(trained))}
        tensors = {f"flow/{k}": flow for k, (flow, _) in trained.items()}
        memory = {"assignment": assigned.cluster}
        return Update(Message(tensors, facts), memory=memory, metrics=metrics)

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average each flow (algorithm 3); then decide whether the cluster round or the run is over."""
        s = self.settings
        state = UIFCAState.from_server(server)
        if state.phase == "centres":
            _, labels = gather_centres(updates, self.context.clusters, self.context.seed)
            facts = replace(state, phase="learn").facts()
            return server.next(server.model, state={**server.state, **labels}, facts=facts)
        sent = server.model["flows"]
        starts = sent if s.warm_start else self.starts()
        averaged = average(updates, starts, self.context.aggregation)
        begins = state.begins_cluster_round
        state = state.after_averaging(averaged.changed, averaged.empty, averaged.diverged)
        if begins and state.still >= self.settled_after:
            # The flows that this round began from made the assignment that did not change.
            facts = replace(state, comm_round=0).facts()
            return server.next(server.model, state={}, facts=facts, finished=True)
        flows = averaged.filled(starts)
        if state.comm_round == s.comm_rounds:
            state = state.next_cluster_round()
        finished = state.cluster_round == s.cluster_rounds
        return server.next({"flows": flows}, state={}, facts=state.facts(), finished=finished)

    # --- what is found --------------------------------------------------------------------------------------------

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of `assignment`, and the mean losses of the clients' right and wrong points.

        Losses are -log p in nats, for images in bits per dimension.
        """
        state = UIFCAState.from_server(server)
        if not state.assigned or not server.round:
            return {}
        current = self.current_assignment(server, clients)
        loss = current.loss
        if self.context.spec.kind == "image":
            loss = bits_per_dimension(-loss, math.prod(self.context.spec.shape))
        progress = {
            "cluster_round": float(state.cluster_round),
            "changed": float(state.changed),
            "empty": float(len(state.empty)),
            "diverged": float(len(state.diverged)),
        }
        scores = assignment_metrics(self.assigned(server, clients, evaluation, current), evaluation)
        return progress | scores | point_scores(current, loss)

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Assign clients' points under the current flows, and test samples to their likeliest flow, with posteriors.

        Raises:
            MethodError: before the first cluster round.
        """
        if not UIFCAState.from_server(server).assigned or not server.round:
            raise MethodError("UIFCA has assigned no point before its first cluster round")
        return self.assigned(server, clients, evaluation, self.current_assignment(server, clients))

    def assigned(
        self, server: Server, clients: Clients, evaluation: Evaluation, found: CurrentAssignment
    ) -> Assignment:
        """Return the clusters of all samples, given those of the clients' points."""
        index = torch.cat([client.train.index for client in clients])
        return assign_samples(self.predictor(server), evaluation, own_clusters=(index, found.cluster))

    def current_assignment(self, server: Server, clients: Clients) -> CurrentAssignment:
        """Return the assignment that clients would find if a cluster round began now."""
        clusters = []
        truth = []
        losses = []
        for client in clients:
            rows = self.losses(server.model["flows"], client.train, client.streams)
            cluster = lowest(rows)
            losses.append(rows.gather(1, cluster[:, None]).squeeze(1).cpu())
            clusters.append(cluster.cpu())
            if client.train.data.train_y is not None:
                truth.append(client.train.y().cpu())
        return CurrentAssignment(torch.cat(clusters), torch.cat(truth) if truth else None, torch.cat(losses))


def lowest(losses: Tensor) -> Tensor:
    """Return the flow with the lowest of the losses (n, K) for each point, int64 (n,); a diverged flow never is."""
    return losses.nan_to_num(nan=float("inf")).argmin(1)
