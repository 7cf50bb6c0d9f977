"""CFL: clustered federated learning by recursive bipartition (Sattler, Mueller, Samek 2021).

All clients train one model together. Where that has come to rest while single clients still pull, and pull apart, their
cluster is cut in two by the cosine similarities of their updates, and each half goes on by itself. The tree of clusters
is kept, so that new clients find their place by what they would have sent.

Where this departs from the paper's print: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from core.setting import setting
from core.streams import Streams
from methods.base import (
    Client,
    Clients,
    Evaluation,
    Federation,
    Message,
    MethodError,
    RunHistory,
    Server,
    Tensors,
    Update,
)
from methods.cfl import criteria
from methods.cfl.adversary import Attack, attack_of, corrupt
from methods.cfl.bipartition import bipartition, ready_to_split
from methods.cfl.history import discounted_sum
from methods.cfl.measure import ClusterMeasure, measure_gaps, measure_norms, measure_similarities, stack
from methods.cfl.membership import Membership
from methods.cfl.scores import (
    PathScores,
    adversaries_apart,
    group_metrics,
    leaf_metrics,
    measured_metrics,
    path_metrics,
)
from methods.cfl.state import CFLState
from methods.cfl.supervised import Score, Supervised, gradient, judge
from methods.cfl.tree import Tree, branch_similarities, nearest_child
from methods.training.steps import LocalSteps, TakenSteps
from methods.training.vectors import Vectors, mean_vector

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CFLSettings:
    """Hyper-parameters of CFL."""

    criterion: Literal["absolute", "relative", "schedule"] = setting(
        "relative",
        "when a cluster may be split: absolute, |mean| < eps1 and max > eps2; relative, |mean| / max < ratio; "
        "schedule, in given rounds",
    )
    eps1: float = setting(0.4, "absolute: a cluster may be split where the norm of its mean update is below this", gt=0)
    eps2: float = setting(
        1.6, "absolute: a cluster may be split where its largest client update has a norm above this", ge=0
    )
    ratio: float = setting(
        0.3, "relative: largest ratio of the mean update's norm to the largest client update's", gt=0, le=1
    )
    floor: float = setting(
        0.5, "relative: the largest norm must exceed this share of the largest median norm seen so far", ge=0, le=1
    )
    patience: int = setting(3, "relative: number of rounds in a row in which the criterion must hold", ge=1)
    schedule: tuple[int, ...] = setting((), "schedule: the rounds at the end of which clusters may be split")
    first_split: int = setting(10, "no split before this round", ge=1)
    settle: int = setting(10, "number of rounds that a new cluster trains before it may be split", ge=0)
    gamma_max: float = setting(0.6, "split only where sqrt((1 - cross) / 2) exceeds this (eq. 39)", ge=0, lt=1)
    outliers: float = setting(
        0.0,
        "exclude a client whose update norm exceeds this multiple of its cluster's median norm; 0: no such rule",
        ge=0,
    )
    similarity: Literal["updates", "gradients", "both"] = setting(
        "updates",
        "compute cosines from updates, from full gradients, or from updates while logging the gap of gradients too",
    )
    history: float = setting(
        0.0,
        "compute cosines from each client's updates summed over rounds, discounted by this factor per round; "
        "0: from the updates of this round alone, as in the paper",
        ge=0,
        lt=1,
    )
    weighting: Literal["samples", "uniform"] = setting(
        "samples", "weight of a client in its cluster's mean update: by number of samples, or 1/|c|"
    )
    permute: bool = setting(False, "clients hide the order of their parameters behind a shared permutation (eq. 45)")
    adversaries: int = setting(0, "number of adversaries: that many clients, the last ones, send false updates", ge=0)
    attack: Attack = setting("mixed", "what adversaries send: random, flip, scale, or mixed")
    attack_scale: float = setting(10.0, "factor by which the attack scale multiplies updates", gt=0)
    joins: tuple[tuple[int, int], ...] = setting((), "(client, round): first round of each client that joins later")
    leaves: tuple[tuple[int, int], ...] = setting((), "(client, round): first round without a client that leaves")


class CFL(Supervised):
    """CFL as a method: server state is the parameter tree (`methods.cfl.tree`) and `CFLState`."""

    name = "cfl"
    Settings = CFLSettings
    settings: CFLSettings

    def __init__(self, settings: CFLSettings, context: Any) -> None:
        super().__init__(settings, context)
        if settings.criterion == "schedule" and not settings.schedule:
            raise MethodError("method.criterion schedule needs method.schedule: the rounds, for example [50, 100, 150]")
        if settings.history and settings.similarity == "gradients":
            raise MethodError("method.history is of updates; with method.similarity gradients set it to 0")
        if 0 < settings.outliers < 1:
            raise MethodError(
                f"method.outliers is {settings.outliers}: below 1 it would cut off updates shorter than the median; "
                "give 0 (no such rule) or a number above 1, for example 4"
            )
        self.membership = Membership(settings.joins, settings.leaves)

    def vectors(self) -> Vectors:
        """How weights become a vector; with `permute` in the order that only the clients know."""
        vectors = Vectors(self.network())
        if self.settings.permute:
            generator = Streams(self.context.seed).torch("permutation")
            vectors.permutation = torch.randperm(vectors.size, generator=generator).to(self.context.device)
        return vectors

    def init_server(self, federation: Federation) -> Server:
        """One cluster of all clients that are there from the start."""
        self.membership.check(federation.clients)
        vectors, network = self.vectors(), self.network()
        tree = Tree.start(self.membership.founders(federation.clients))
        state = CFLState(tree, vectors.size, federation.clients, tuple(federation.truth))
        return Server({"node/0": vectors.flatten(network)}, state.facts())

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """The usual draw, of those clients that are present."""
        drawn = super().sample_clients(server, federation)
        return [client for client in drawn if self.membership.present(client, server.round + 1)]

    def broadcast(self, server: Server, client: int) -> Message:
        """The weights of the client's cluster; on its way down the tree, those of the node where it stands."""
        tree = Tree.of(server.facts)
        known = any(client in leaf.clients for leaf in tree.leaves()) or client in tree.walking
        node = tree.place(client).id if known else 0  # who joins in this round begins at the root
        return Message({"weights": server.tensors[f"node/{node}"]}, {"clients": server.facts["clients"]})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Dtheta = SGD(theta) - theta (eq. 1), and where asked the full gradient at theta."""
        self.check(client)
        s = self.settings
        start = message.tensors["weights"]
        tensors: dict[str, Tensor] = {}
        vectors = self.vectors()
        network = vectors.load(self.network(), start)
        if s.similarity != "updates":
            gradient(network, client.train, self.context)
            tensors["gradient"] = -vectors.gradients(network)

        def finish(taken: TakenSteps) -> Update:
            update = vectors.flatten(network) - start
            attack = attack_of(client.id, message.facts["clients"], s.adversaries, s.attack)
            if attack is not None:
                update = corrupt(update, attack, s.attack_scale, client.streams)
            metrics = taken.metrics | {"norm": float(update.double().norm())}
            return Update(Message({"update": update, **tensors}, {"n": len(client.train)}), metrics=metrics)

        return self.epochs(network, client, finish)

    def learn(self, start: Tensor, client: Client) -> Tensor:
        """What local training from `start` changes."""
        vectors = self.vectors()
        network = vectors.load(self.network(), start)
        self.take(self.epochs(network, client, lambda taken: Update(Message(), metrics=taken.metrics)))
        return vectors.flatten(network) - start

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Each cluster moves by its mean update; one at rest whose clients pull apart is split first (algorithm 5).

        All updates of a round are held at once: the similarity matrix needs them.
        """
        state, tensors, round = CFLState.of(server), dict(server.tensors), server.round + 1
        tree, peak, log = state.tree, state.peak, []
        by_client = {update.client: update for update in updates}
        self.membership.update(tree, state.clients, round)
        if self.settings.history:
            past = server.tensors.get("past")
            tensors["past"] = discounted_sum(past, by_client, self.settings.history, state.clients, state.size)
        self.walk(tree, tensors, by_client, state.size)
        for leaf in tree.leaves():
            active = [client for client in leaf.clients if client in by_client]
            if not active:
                continue
            measure = self.measure(leaf.id, active, by_client, state, tensors.get("past"))
            peak = max(peak, measure.median_norm)
            parts: dict[int, Sequence[int]] = {leaf.id: active}
            groups = self.groups_to_split(tree, measure, active, round, peak)
            if groups is not None:
                parts = self.split(tree, tensors, by_client, measure, groups, round)
            for node, group in parts.items():
                tensors[f"node/{node}"] = tensors[f"node/{node}"] + self.mean(group, by_client)
            log.append(measure)
        return server.next(tensors, replace(state, peak=peak, log=tuple(log)).facts())

    def walk(self, tree: Tree, tensors: Tensors, by_client: dict[int, Update], size: int) -> None:
        """Clients that joined go one level down the tree (algorithm 4); their updates count for no cluster yet."""
        for client in sorted(tree.walking.keys() & by_client.keys()):
            update = by_client.pop(client).message.tensors["update"]
            tree.step(client, nearest_child(branch_similarities(tree, tensors, tree.walking[client], update, size)))

    def mean(self, group: Sequence[int], by_client: Mapping[int, Update]) -> Tensor:
        """The mean update of some clients, by their samples or alike."""
        uniform = self.settings.weighting == "uniform"
        sizes = [1.0 if uniform else float(by_client[c].message.facts["n"]) for c in group]
        return mean_vector(
            (by_client[c].message.tensors["update"] for c in group), [size / sum(sizes) for size in sizes]
        )

    def measure(
        self, node: int, active: list[int], by_client: Mapping[int, Update], state: CFLState, past: Tensor | None = None
    ) -> ClusterMeasure:
        """Norms, similarities, the best bipartition and, where groups are planted, separation gaps of one cluster.

        Norms are of this round's updates; similarities are of `past` (clients, p) where it is given.
        """
        s = self.settings
        rows = stack(by_client, active, "update", state.size)
        measured = measure_norms(node, active, rows, self.mean(active, by_client)[: state.size], s.outliers)
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
        """The two groups of clients where a cluster is to be split; None where not. Counts its calm rounds."""
        s, node = self.settings, tree.nodes[measure.node]
        calm = node.calm + 1 if criteria.relative(measure, s.ratio, s.floor, peak) else 0
        tree.change(node.id, calm=calm)
        # A split needs everyone's update: who is missing in this round would be lost.
        if len(active) < 2 or len(active) < len(node.clients):
            return None
        if measure.outliers:
            return [[client for client in active if client not in measure.outliers], list(measure.outliers)]
        if s.criterion == "schedule":
            due = criteria.scheduled(round, s.schedule)
        elif not criteria.settled(round, node.born, s.first_split, s.settle):
            due = False
        elif s.criterion == "absolute":
            due = criteria.absolute(measure, s.eps1, s.eps2)
        else:
            due = calm >= s.patience
        assert measure.groups is not None
        if not due or not ready_to_split(measure.groups.cross, s.gamma_max):
            return None
        return [[active[row] for row in rows] for rows in (measure.groups.first, measure.groups.second)]

    def split(
        self,
        tree: Tree,
        tensors: Tensors,
        by_client: Mapping[int, Update],
        measure: ClusterMeasure,
        groups: Sequence[Sequence[int]],
        round: int,
    ) -> dict[int, Sequence[int]]:
        """Give a cluster two children that begin at its weights; cache what new clients will be compared with.

        Returns:
            The clients of each child, by its number.
        """
        parts = dict(zip(tree.split(measure.node, groups, round), groups, strict=True))
        tensors[f"similarity/{measure.node}"] = torch.from_numpy(measure.alpha)
        for child, group in parts.items():
            tensors[f"node/{child}"] = tensors[f"node/{measure.node}"]
            tensors[f"edge/{child}"] = stack(by_client, group, "update")
        return parts

    # --- what is found --------------------------------------------------------------------------------------------

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Each honest client's accuracy with its cluster's model; with the best model of its path; norms and gaps.

        `acc` is of the cluster's model; for the others see `methods.cfl.scores`.
        """
        state = CFLState.of(server)
        tree, adversaries = state.tree, self.settings.adversaries
        honest = [c for leaf in tree.leaves() for c in leaf.clients if c < state.clients - adversaries]
        scores = self.path_scores(tree, server.tensors, honest, clients)
        own = {client: found[tree.place(client).id] for client, found in scores.items()}
        metrics = self.clients_metrics(own) | path_metrics(scores)
        metrics |= leaf_metrics(tree, own, text=self.context.spec.kind == "text") | measured_metrics(state.log)
        if state.truth and honest:
            metrics |= group_metrics(tree, honest, self.membership.late(honest), state.truth)
        if adversaries:
            metrics["adversaries_apart"] = adversaries_apart(tree, honest)
        return metrics

    def path_scores(self, tree: Tree, tensors: Tensors, honest: list[int], clients: Clients) -> PathScores:
        """The score of every node on the path of every honest client, on the client's validation samples."""
        vectors, network = self.vectors(), self.network()
        scores: dict[int, dict[int, Score]] = {client: {} for client in honest}
        for node in tree.nodes:
            vectors.load(network, tensors[f"node/{node.id}"])
            for client in honest:
                if node.id in tree.path(tree.place(client).id):
                    scores[client][node.id] = judge(network, clients[client].validation, self.context)
        return scores

    def figures(self, history: RunHistory) -> dict[str, Figure]:
        """The tree, the similarity matrix of each split, and clusters and norms over rounds."""
        from methods.cfl.figures import figures  # here: training does without matplotlib

        s = self.settings
        return figures(history, (s.eps1, s.eps2) if s.criterion == "absolute" else None)
