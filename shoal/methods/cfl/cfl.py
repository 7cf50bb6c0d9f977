"""CFL: clustered federated learning by recursive bipartition (Sattler, Mueller, Samek 2021).

All clients train one model together. Where it has come to rest while single clients still pull in different directions,
their cluster is split in two by the cosine similarities of their updates, and each half continues by itself. The server
keeps the tree of clusters, so that new clients find their place by the update that they would have sent.

docs/methods.md lists where this departs from the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.streams import Streams
from shoal.methods.averaging.robust import aggregated_vectors
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl import criteria, latest
from shoal.methods.cfl.adversary import attack_of, corrupt
from shoal.methods.cfl.bipartition import bipartition, ready_to_split
from shoal.methods.cfl.gamma import NOTHING_SHARED, gamma_of, halves
from shoal.methods.cfl.history import discounted_sum
from shoal.methods.cfl.measure import ClusterMeasure, measure_gaps, measure_norms, measure_similarities, stack
from shoal.methods.cfl.membership import Membership
from shoal.methods.cfl.scores import (
    PathScores,
    adversaries_apart,
    group_metrics,
    leaf_metrics,
    measured_metrics,
    path_metrics,
)
from shoal.methods.cfl.settings import CFLSettings, check_settings
from shoal.methods.cfl.state import CFLState
from shoal.methods.cfl.supervised import Score, Supervised, gradient, judge
from shoal.methods.cfl.tree import Node, Tree, branch_similarities, nearest_child
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, RunHistory, Server, Update
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.questions import Question
from shoal.methods.training.local import batches
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
    ratio = 0.3
    """Largest ratio of the mean update's norm to the largest client update's in the relative criterion."""
    patience = 3
    """Number of rounds in a row in which the relative criterion must hold."""
    min_age = 10
    """Number of rounds that a cluster trains before the relative criterion may split it."""

    def __init__(self, settings: CFLSettings, context: Any) -> None:
        super().__init__(settings, context)
        check_settings(settings)
        self.membership = Membership(settings.presence)

    def vectors(self) -> Vectors:
        """Return how weights become a vector; with `permute` in an order that only the clients know."""
        vectors = Vectors(self.network())
        if self.settings.permute:
            generator = Streams(self.context.seed).torch("permutation")
            vectors.permutation = torch.randperm(vectors.size, generator=generator).to(self.context.device)
        return vectors

    def init_server(self, federation: Federation) -> Server:
        """Start with one cluster of all clients that are present from the start."""
        self.membership.check(federation.clients)
        vectors = self.vectors()
        tree = Tree.start(self.membership.founders(federation.clients))
        state = CFLState(tree, vectors.size, federation.clients, tuple(federation.truth))
        return Server({"node/0": vectors.flatten(self.network())}, facts=state.facts())

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """Return the present clients of the usual draw."""
        drawn = super().sample_clients(server, federation)
        return [client for client in drawn if self.membership.present(client, server.round + 1)]

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the weights of the client's cluster, or of its present node while it walks down the tree."""
        node = self.node_of(server, client)
        facts = {"clients": server.facts["clients"]}
        if self.measures_gamma(node, server.round + 1):
            facts["measure"] = 1
        return Message({"weights": server.model[f"node/{node.id}"]}, facts)

    def node_of(self, server: Server, client: int) -> Node:
        """Return the cluster that a client trains in; a client that joins in this round begins at the root."""
        tree = Tree.from_facts(server.facts)
        known = any(client in leaf.clients for leaf in tree.leaves()) or client in tree.walking
        return tree.place(client) if known else tree.nodes[0]

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the update of the cluster's weights; the gradient and the noise where settings ask for them."""
        node = self.node_of(server, client)
        start = server.model[f"node/{node.id}"]
        tensors = {"update": TensorForm(tuple(start.shape), start=start, difference=True)}
        if self.settings.similarity != "updates":
            tensors["gradient"] = TensorForm((server.facts["size"],), measured=False)
        facts = {"n": exactly(samples)}
        if self.measures_gamma(node, server.round + 1):
            facts["gamma"] = FactForm(0, NOTHING_SHARED)
        return MessageForm(tensors, facts)

    def may_split(self, node: Node, round: int) -> bool:
        """Return whether a cluster can be split at the end of a round, by what is known at its beginning.

        Where not all clients take part, any round's updates may be the latest when the cluster is split.
        """
        s = self.settings
        if self.context.fraction < 1 or s.criterion == "absolute":
            return True
        if s.criterion == "schedule":
            return criteria.scheduled(round, s.schedule)
        return node.calm + 1 >= self.patience and round - node.born >= self.min_age

    def measures_gamma(self, node: Node, round: int) -> bool:
        """Return whether the clients of a cluster measure the noise of their updates in a round."""
        return self.settings.gamma_max == "measured" and self.may_split(node, round)

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return the steps of dtheta = SGD(theta) - theta (eq. 1), and the full gradient where settings ask for it."""
        self.check(client)
        s = self.settings
        start = message.tensors["weights"]
        tensors: dict[str, Tensor] = {}
        vectors = self.vectors()
        network = vectors.load(self.network(), start)
        if s.similarity != "updates":
            gradient(network, client.train, self.context)
            tensors["gradient"] = -vectors.gradients(network)
        attack = attack_of(client.id, message.facts["clients"], s.adversaries)

        def finish(taken: TakenSteps) -> Update:
            update = vectors.flatten(network) - start
            if attack is not None:
                update = corrupt(update, attack, client.streams, start)
            metrics = taken.metrics | {"norm": float(update.double().norm())}
            facts: dict[str, Any] = {"n": len(client.train)}
            if message.facts.get("measure"):
                facts["gamma"] = self.measured_gamma(start, client)
                metrics["gamma"] = facts["gamma"]
            return Update(Message({"update": update, **tensors}, facts), metrics=metrics)

        return self.epochs(network, client, finish, reverse=attack == "labels")

    def learn(self, start: Tensor, client: Client) -> Tensor:
        """Return what local training from `start` changes, (p,)."""
        vectors = self.vectors()
        network = vectors.load(self.network(), start)
        self.take(self.epochs(network, client, lambda taken: Update(Message(), metrics=taken.metrics)))
        return vectors.flatten(network) - start

    def measured_gamma(self, start: Tensor, client: Client) -> float:
        """Return the noise of a client's update by two halves of its samples (`shoal.methods.cfl.gamma`).

        Raises:
            ClientError: the client has fewer than four training samples.
        """
        count = len(client.train)
        local = self.context.local
        if count < 4:
            raise ClientError(
                f"client {client.id} has {count} training samples; method.gamma_max measured trains on two halves of "
                "them and needs 4: set method.gamma_max to a number, or leave this client out"
            )
        steps = local.steps or local.epochs * (count // min(local.batch, count))
        found = []
        for rows in halves(count, client.streams.torch("gamma halves")):
            half = replace(client, train=client.train.take(rows.to(client.train.index.device)))
            vectors = self.vectors()
            network = vectors.load(self.network(), start)
            if self.settings.similarity == "gradients":
                gradient(network, half.train, self.context)
                found.append(vectors.gradients(network))
                continue
            # As many steps as with all samples: with half as many the weights would move half as far.
            epochs = -(-steps // max(1, len(rows) // min(local.batch, len(rows))))
            many = itertools.islice(batches(half, local, epochs), steps)
            self.take(self.epochs(network, half, lambda taken: Update(Message(), metrics=taken.metrics), steps=many))
            found.append((vectors.flatten(network) - start)[: vectors.size])
        return gamma_of(*found)

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
        self.membership.update(tree, state.clients, round)
        if self.settings.history:
            past = kept.get("past")
            kept["past"] = discounted_sum(past, by_client, self.settings.history, state.clients, state.size)
        self.walk(tree, kept, by_client, state.size)
        partial = self.context.fraction < 1
        if partial:
            latest.remember(kept, by_client)
            members = {client for leaf in tree.leaves() for client in leaf.clients}
            latest.forget(kept, latest.stored_clients(kept) - members)
        for leaf in tree.leaves():
            if not any(client in by_client for client in leaf.clients):
                continue
            sent = latest.recall(kept, leaf.clients) if partial else by_client
            judged = [client for client in leaf.clients if client in sent]
            measure = self.measure(leaf.id, judged, sent, state, kept.get("past"))
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
            log.append(measure)
        facts = replace(state, peak=peak, log=tuple(log)).facts()
        return server.next(models, state=kept, facts=facts)

    def walk(self, tree: Tree, kept: Tensors, by_client: dict[int, Update], size: int) -> None:
        """Move clients that joined one level down the tree (algorithm 4); their updates count for no cluster yet."""
        for client in sorted(tree.walking.keys() & by_client.keys()):
            update = by_client.pop(client).message.tensors["update"]
            tree.step(client, nearest_child(branch_similarities(tree, kept, tree.walking[client], update, size)))

    def mean(self, group: Sequence[int], by_client: Mapping[int, Update]) -> Tensor:
        """Return the mean update of some clients by number of samples, (p,)."""
        sizes = [float(by_client[c].message.facts["n"]) for c in group]
        vectors = [by_client[c].message.tensors["update"] for c in group]
        return aggregated_vectors(vectors, [size / sum(sizes) for size in sizes], self.context.aggregation)

    def measure(
        self, node: int, active: list[int], by_client: Mapping[int, Update], state: CFLState, past: Tensor | None = None
    ) -> ClusterMeasure:
        """Measure one cluster: norms, similarities, the best bipartition and, for planted groups, separation gaps.

        Args:
            node: the cluster's number.
            active: the clients that it is judged by.
            by_client: their updates: of this round, or the latest of each.
            state: of the server.
            past: updates summed over rounds (clients, p), where these are compared; else None.
        """
        s = self.settings
        rows = stack(by_client, active, "update", state.size)
        measured = measure_norms(node, rows, self.mean(active, by_client)[: state.size])
        facts = [by_client[client].message.facts for client in active]
        gammas = [fact["gamma"] for fact in facts if "gamma" in fact]
        if s.gamma_max == "measured" and len(gammas) == len(active):
            measured = replace(measured, gamma=float(np.median(gammas)))
        if len(active) < 2:
            return measured
        gradients = None if s.similarity == "updates" else stack(by_client, active, "gradient")
        found = measure_similarities(rows if past is None else past[active], gradients, s.similarity)
        groups = bipartition(found.used)
        measured = replace(measured, alpha=found.used, groups=groups, cross=groups.cross)
        if not state.truth or s.adversaries:
            return measured
        this_round = None if past is None else rows
        gap, gap_round, gap_gradients = measure_gaps(found, this_round, np.array(state.truth)[active])
        return replace(measured, gap=gap, gap_round=gap_round, gap_gradients=gap_gradients)

    def groups_to_split(
        self, tree: Tree, measure: ClusterMeasure, active: list[int], round: int, peak: float
    ) -> list[list[int]] | None:
        """Return the two groups of clients where a cluster is to be split, else None; count its calm rounds."""
        s = self.settings
        node = tree.nodes[measure.node]
        calm = node.calm + 1 if criteria.relative(measure, self.ratio, s.floor, peak) else 0
        tree.change(node.id, calm=calm)
        # A split needs the update of every client: it says where the client belongs.
        if len(active) < 2 or len(active) < len(node.clients):
            return None
        if s.criterion == "schedule":
            due = criteria.scheduled(round, s.schedule)
        elif s.criterion == "absolute":
            due = criteria.absolute(measure, s.eps1, s.eps2)
        else:
            due = calm >= self.patience and round - node.born >= self.min_age
        gamma = measure.gamma if s.gamma_max == "measured" else s.gamma_max
        assert measure.groups is not None
        if not due or gamma is None or not ready_to_split(measure.groups.cross, gamma):
            return None
        return [[active[row] for row in rows] for rows in (measure.groups.first, measure.groups.second)]

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
        """Return the accuracy of honest clients with their cluster's model (`acc`) and along their paths; norms; gaps.

        `shoal.methods.cfl.scores` describes the metrics.
        """
        state = CFLState.from_server(server)
        tree = state.tree
        adversaries = len(self.settings.adversaries)
        honest = [c for leaf in tree.leaves() for c in leaf.clients if c < state.clients - adversaries]
        own = self.own_scores(tree, server.model, honest, clients)
        metrics = self.clients_metrics(own)
        metrics |= path_metrics(own, self.path_scores(tree, server.model, honest, clients))
        metrics |= leaf_metrics(tree, own, text=self.context.spec.kind == "text") | measured_metrics(state.log)
        if state.truth and honest:
            metrics |= group_metrics(tree, honest, self.membership.late(honest), state.truth)
        if adversaries:
            metrics["adversaries_apart"] = adversaries_apart(tree, honest)
        return metrics

    def own_scores(self, tree: Tree, models: Tensors, honest: list[int], clients: Clients) -> dict[int, Score]:
        """Return the score of each honest client's own cluster, on all of its validation samples."""
        vectors = self.vectors()
        network = self.network()
        scores: dict[int, Score] = {}
        for node in tree.nodes:
            vectors.load(network, models[f"node/{node.id}"])
            for client in honest:
                if tree.place(client).id == node.id:
                    scores[client] = judge(network, clients[client].validation, self.context)
        return {client: scores[client] for client in honest}

    def path_scores(self, tree: Tree, models: Tensors, honest: list[int], clients: Clients) -> PathScores:
        """Return the scores of every node on the path of an honest client, on two halves of its validation samples.

        The halves are drawn once for the whole run. A client in an unsplit cluster has no choice, and is left out.
        """
        vectors = self.vectors()
        network = self.network()
        paths = {client: tree.path(tree.place(client).id) for client in honest}
        scores: dict[int, dict[int, tuple[Score, Score]]] = {c: {} for c, path in paths.items() if len(path) > 1}
        for node in tree.nodes:
            vectors.load(network, models[f"node/{node.id}"])
            for client in scores:
                if node.id in paths[client]:
                    samples = clients[client].validation
                    generator = Streams(self.context.seed, 0, client).torch("validation halves")
                    order = torch.randperm(len(samples), generator=generator).to(samples.index.device)
                    half = len(samples) // 2
                    first = judge(network, samples.take(order[:half]), self.context)
                    second = judge(network, samples.take(order[half:]), self.context)
                    scores[client][node.id] = (first, second)
        return scores

    def figures(self, history: RunHistory) -> dict[str, Figure]:
        """Draw the tree, the similarity matrix of each split, and clusters and norms over rounds."""
        from shoal.methods.cfl.figures import figures  # training needs no matplotlib

        s = self.settings
        return figures(history, (s.eps1, s.eps2) if s.criterion == "absolute" else None)
