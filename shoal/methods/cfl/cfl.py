"""CFL: clustered federated learning by recursive bipartition (Sattler, Mueller, Samek 2021).

All clients train one model together. Where it has come to rest while single clients still pull in different directions,
their cluster is split in two by the cosine similarities of their updates, and each half continues by itself. The server
keeps the tree of clusters, so that a new client finds its place by the update that it would have sent
(`shoal model enroll`).

docs/methods.md lists where this departs from the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.averaging.robust import aggregated_vectors
from shoal.methods.averaging.vectors import parameter_count
from shoal.methods.cfl import latest
from shoal.methods.cfl.bipartition import ready_to_split
from shoal.methods.cfl.measure import ClusterMeasure, measured_cluster, stack
from shoal.methods.cfl.scores import PathScores, group_metrics, leaf_metrics, measured_metrics, path_metrics
from shoal.methods.cfl.settings import CFLSettings
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import Score, Supervised, judge
from shoal.methods.cfl.tree import Node, Tree
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.training.local_steps import LocalSteps, TakenSteps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class CFL(Supervised):
    """CFL as a method: the server state is the parameter tree (`shoal.methods.cfl.tree`) and `CFLState`."""

    name = "cfl"
    title = "clustered federated learning (CFL)"
    question = Question.CLIENTS
    about = "Splits clients whose updates disagree."
    Settings = CFLSettings
    settings: CFLSettings
    averages_parts = True
    evaluation_reads_memory = False
    of_the_server = ("clusters", "mean_norm", "max_norm", "cross", "gap")
    ratio = 0.3
    """Largest ratio of the mean update's norm to the largest client update's in the relative criterion."""
    patience = 3
    """Number of rounds in a row in which the relative criterion must hold."""
    min_age = 10
    """Number of rounds that a cluster trains before the relative criterion may split it."""

    def __init__(self, settings: CFLSettings, context: Any) -> None:
        super().__init__(settings, context)
        if settings.criterion == "schedule" and not settings.schedule:
            raise MethodError("method.criterion schedule needs method.schedule: the rounds, for example [50, 100, 150]")

    @property
    def order(self) -> Tensor | None:
        """With `permute` an order that only the clients know."""
        if not self.settings.permute:
            return None
        generator = Streams(self.context.seed).torch("permutation")
        return torch.randperm(parameter_count(self.network()), generator=generator).to(self.context.device)

    def init_server(self, federation: Federation) -> Server:
        """Start with one cluster of all clients."""
        network = self.network()
        tree = Tree.start(range(federation.clients))
        state = CFLState(tree, parameter_count(network), federation.clients, tuple(federation.truth))
        return Server({"node/0": self.flat(network)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights of the client's cluster."""
        return Message({"weights": server.model[f"node/{self.node_of(server, client).id}"]})

    def node_of(self, server: Server, client: int) -> Node:
        """Return the cluster that a client trains in."""
        return Tree.from_facts(server.facts).place(client)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the update of the cluster's weights."""
        start = server.model[f"node/{self.node_of(server, client).id}"]
        update = TensorForm(tuple(start.shape), start=start, difference=True)
        return MessageForm({"update": update}, {"n": exactly(samples)})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return the steps of dtheta = SGD(theta) - theta (eq. 1)."""
        self.check(client)
        start = message.tensors["weights"]
        network = self.loaded(start)

        def finish(taken: TakenSteps) -> Update:
            update = self.flat(network) - start
            metrics = taken.metrics | {"norm": float(update.double().norm())}
            return Update(Message({"update": update}, {"n": len(client.train)}), metrics=metrics)

        return self.epochs(network, client, finish)

    def learn(self, start: Tensor, client: Client) -> Tensor:
        """Return what local training from `start` changes, (p,)."""
        network = self.loaded(start)
        self.take(self.epochs(network, client, lambda taken: Update(Message(), metrics=taken.metrics)))
        return self.flat(network) - start

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Move each cluster by its mean update; split one at rest whose clients pull apart first (algorithm 5).

        All updates of a round are in memory at once: the similarity matrix needs them. Where not all clients take part,
        a cluster is judged by the latest update of each (`shoal.methods.cfl.latest`), and moves by those of this round.
        """
        state = CFLState.from_server(server)
        round = server.round + 1
        models = dict(server.model)
        kept = dict(server.state)
        tree = state.tree
        peak = state.peak
        log = []
        by_client = {update.client: update for update in updates}
        partial = self.context.fraction < 1
        if partial:
            latest.remember(kept, by_client)
        for leaf in tree.leaves():
            if not any(client in by_client for client in leaf.clients):
                continue
            sent = latest.recall(kept, leaf.clients) if partial else by_client
            judged = [client for client in leaf.clients if client in sent]
            measure = self.measure(leaf.id, judged, sent, state)
            peak = max(peak, measure.median_norm)
            parts: dict[int, Sequence[int]] = {leaf.id: judged}
            groups = self.groups_to_split(tree, measure, judged, round, peak)
            if groups is not None:
                parts = self.split(tree, models, kept, sent, measure, groups, round)
                # Updates at the parent's weights have been used: the children are judged by later ones.
                latest.forget(kept, judged)
            for node, group in parts.items():
                if active := [client for client in group if client in by_client]:
                    models[f"node/{node}"] = models[f"node/{node}"] + self.mean(active, by_client)
            log.append(measure.entry())
        facts = replace(state, peak=peak, log=tuple(log)).facts()
        return server.next(models, state=kept, facts=facts)

    def mean(self, group: Sequence[int], by_client: Mapping[int, Update]) -> Tensor:
        """Return the mean update of some clients by number of samples, (p,)."""
        sizes = [float(by_client[c].message.facts["n"]) for c in group]
        vectors = [by_client[c].message.tensors["update"] for c in group]
        return aggregated_vectors(vectors, [size / sum(sizes) for size in sizes], self.context.aggregation)

    def measure(self, node: int, active: list[int], by_client: Mapping[int, Update], state: CFLState) -> ClusterMeasure:
        """Measure one cluster: norms, similarities, the best bipartition and, for planted groups, the separation gap.

        Args:
            node: the cluster's number.
            active: the clients that it is judged by.
            by_client: their updates: of this round, or the latest of each.
            state: of the server.
        """
        rows = stack(by_client, active, "update", state.size)
        mean = self.mean(active, by_client)[: state.size]
        truth = [state.truth[client] for client in active] if state.truth else []
        return measured_cluster(node, rows, mean, truth)

    def groups_to_split(
        self, tree: Tree, measure: ClusterMeasure, active: list[int], round: int, peak: float
    ) -> list[list[int]] | None:
        """Return the two groups of clients where a cluster is to be split, else None; count its calm rounds.

        A cluster is split where it has come to rest as a whole, while single clients still pull away (eq. 32, 33): by
        the paper's bounds of both norms, by their ratio, or in given rounds as in the paper's figures.
        """
        s = self.settings
        node = tree.nodes[measure.node]
        rests = measure.mean_norm < self.ratio * measure.max_norm and measure.max_norm > s.floor * peak
        calm = node.calm + 1 if rests else 0
        tree.change(node.id, calm=calm)
        # A split needs the update of every client: it says where the client belongs.
        if len(active) < 2 or len(active) < len(node.clients):
            return None
        if s.criterion == "schedule":
            due = round in s.schedule
        elif s.criterion == "absolute":
            due = measure.mean_norm < s.eps1 and measure.max_norm > s.eps2
        else:
            due = calm >= self.patience and round - node.born >= self.min_age
        gamma = self.gamma(measure)
        assert measure.groups is not None
        if not due or gamma is None or not ready_to_split(measure.groups.cross, gamma):
            return None
        return [[active[row] for row in rows] for rows in (measure.groups.first, measure.groups.second)]

    def gamma(self, measure: ClusterMeasure) -> float | None:
        """Return the bound of criterion (39) for a cluster; None: it is not split."""
        return self.settings.gamma_max

    def split(
        self,
        tree: Tree,
        models: Tensors,
        kept: Tensors,
        by_client: Mapping[int, Update],
        measure: ClusterMeasure,
        groups: Sequence[Sequence[int]],
        round: int,
    ) -> dict[int, Sequence[int]]:
        """Give a cluster two children that begin at its weights; cache the updates that new clients are compared with.

        Returns:
            The clients of each child, by its number.
        """
        parts = dict(zip(tree.split(measure.node, groups, round), groups, strict=True))
        kept[f"similarity/{measure.node}"] = torch.from_numpy(measure.alpha)
        for child, group in parts.items():
            models[f"node/{child}"] = models[f"node/{measure.node}"]
            kept[f"edge/{child}"] = stack(by_client, group, "update")
        return parts

    @classmethod
    def served(cls, server: Server, *, clients_told: bool) -> Server:
        """Return the tree with its weights; with `clients_told` also the updates that a new client is compared with."""
        kept = {
            name: tensor
            for name, tensor in server.state.items()
            if name.startswith("similarity/") or (clients_told and name.startswith("edge/"))
        }
        return replace(server, state=kept)

    # --- what is found --------------------------------------------------------------------------------------------

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the accuracy of clients with their cluster's model (`acc`) and along their paths; norms; gaps.

        `shoal.methods.cfl.scores` describes the metrics.
        """
        state = CFLState.from_server(server)
        tree = state.tree
        judged = [client for client in self.judged_clients(state) if client in clients]
        own, paths = self.scores(tree, server.model, judged, clients)
        metrics = self.clients_metrics(own) | path_metrics(own, paths)
        metrics |= leaf_metrics(tree, own, text=self.context.spec.kind == "text") | measured_metrics(state.log)
        if state.truth and judged:
            metrics |= group_metrics(tree, judged, state.truth)
        return metrics

    def judged_clients(self, state: CFLState) -> list[int]:
        """Return the clients that scores are of, cluster by cluster."""
        return [client for leaf in state.tree.leaves() for client in leaf.clients]

    def scores(
        self, tree: Tree, models: Tensors, judged: list[int], clients: Clients
    ) -> tuple[dict[int, Score], PathScores]:
        """Return the score of each client's own cluster, and those of every node on its path.

        The own one is on all of its validation samples, those of a path on two halves, drawn once for the whole run. A
        client in an unsplit cluster has no choice, and no path.
        """
        paths = {client: tree.path(tree.place(client).id) for client in judged}
        own: dict[int, Score] = {}
        scores: dict[int, dict[int, tuple[Score, Score]]] = {c: {} for c, path in paths.items() if len(path) > 1}
        for node in tree.nodes:
            network = self.loaded(models[f"node/{node.id}"])
            for client in judged:
                if node.id not in paths[client]:
                    continue
                samples = clients[client].validation
                if node.id == paths[client][-1]:
                    own[client] = judge(network, samples, self.context)
                if client in scores:
                    generator = Streams(self.context.seed, 0, client).torch("validation halves")
                    order = torch.randperm(len(samples), generator=generator).to(samples.index.device)
                    half = len(samples) // 2
                    first = judge(network, samples.take(order[:half]), self.context)
                    second = judge(network, samples.take(order[half:]), self.context)
                    scores[client][node.id] = (first, second)
        return {client: own[client] for client in judged}, scores

    def figures(self, server: Server, client_names: Sequence[str]) -> dict[str, Figure]:
        """Draw the tree, and the similarity matrix of each split."""
        from shoal.methods.cfl.figures import figures  # training needs no matplotlib

        return figures(server, client_names)
