"""CFL: clustered federated learning by recursive bipartition (Sattler, Mueller, Samek 2021).

All clients train one model together. Where that has come to rest while single clients still pull, and pull apart, their
cluster is cut in two by the cosine similarities of their updates, and each half goes on by itself. The tree of clusters
is kept, so that new clients find their place by what they would have sent.

Where this departs from the paper's print: docs/methods.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

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
    Server,
    Update,
)
from methods.cfl.adversary import Attack, attack_of, corrupt
from methods.cfl.bipartition import bipartition, cosine_matrix, ready_to_split, separation_gap
from methods.cfl.supervised import Score, Supervised, gradient, judge
from methods.cfl.tree import Tree, branch_similarities, nearest_child
from methods.scores.clustering import ari
from methods.training.steps import LocalSteps, TakenSteps
from methods.training.vectors import Vectors, mean_vector


@dataclass(frozen=True)
class CFLSettings:
    """Hyper-parameters of CFL."""

    criterion: Literal["absolute", "relative", "schedule"] = setting(
        "relative", "when a cluster is at rest: |mean| < eps1 and max > eps2; |mean| / max < ratio; or given rounds"
    )
    eps1: float = setting(0.4, "absolute: largest norm of a cluster's mean update", gt=0)
    eps2: float = setting(1.6, "absolute: smallest norm of its largest client update", ge=0)
    ratio: float = setting(0.3, "relative: largest ratio of the two norms", gt=0, le=1)
    floor: float = setting(
        0.5, "relative: the largest norm must be above this share of the largest median norm seen", ge=0, le=1
    )
    patience: int = setting(3, "relative: rounds in a row in which the criterion holds", ge=1)
    schedule: tuple[int, ...] = setting((), "schedule: the rounds at whose end clusters may be split")
    first_split: int = setting(10, "no split before this round", ge=1)
    settle: int = setting(10, "rounds a new cluster trains before it may be split", ge=0)
    gamma_max: float = setting(0.6, "split only where sqrt((1 - cross) / 2) is above it (eq. 39)", ge=0, lt=1)
    outliers: float = setting(
        0.0, "cut off at once who sends an update so many times longer than its cluster's median; 0: no such rule", ge=0
    )
    similarity: Literal["updates", "gradients", "both"] = setting(
        "updates", "what cosines are of: updates, full gradients, or updates with the gap of gradients logged beside"
    )
    history: float = setting(
        0.0,
        "cosines are of each client's updates summed over rounds, one round back counting this much, two its square; "
        "0: of this round's alone, as in the paper",
        ge=0,
        lt=1,
    )
    weighting: Literal["samples", "uniform"] = setting("samples", "cluster mean by number of samples, or 1/|c|")
    permute: bool = setting(False, "clients hide which number is which behind a shared permutation (eq. 45)")
    adversaries: int = setting(0, "so many clients, the last ones, send false updates", ge=0)
    attack: Attack = setting("mixed", "what they send: random, flip, scale, or mixed")
    attack_scale: float = setting(10.0, "factor of the attack scale", gt=0)
    joins: tuple[tuple[int, int], ...] = setting((), "(client, round): the first round of clients that come later")
    leaves: tuple[tuple[int, int], ...] = setting((), "(client, round): the first round without this client")


class CFL(Supervised):
    """CFL as a method: server state is the parameter tree (`methods.cfl.tree`)."""

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

    def vectors(self) -> Vectors:
        """How weights become a vector; with `permute` in the order that only the clients know."""
        vectors = Vectors(self.network())
        if self.settings.permute:
            generator = Streams(self.context.seed).torch("permutation")
            vectors.permutation = torch.randperm(vectors.size, generator=generator).to(self.context.device)
        return vectors

    def init_server(self, federation: Federation) -> Server:
        """One cluster of all who are there from the start."""
        late = dict(self.settings.joins)
        for what in (self.settings.joins, self.settings.leaves):
            for client, _ in what:
                if not 0 <= client < federation.clients:
                    raise MethodError(f"method.joins and method.leaves name client {client}, which does not exist")
        vectors, network = self.vectors(), self.network()
        tree = Tree.start([c for c in range(federation.clients) if late.get(c, 1) <= 1])
        facts = {
            **tree.facts(),
            "size": vectors.size,
            "clients": federation.clients,
            "truth": list(federation.truth),
            "peak": 0.0,
            "log": [],
        }
        return Server({"node/0": vectors.flatten(network)}, facts)

    def present(self, client: int, round: int) -> bool:
        """Whether a client is there in a round."""
        s = self.settings
        return dict(s.joins).get(client, 1) <= round < dict(s.leaves).get(client, math.inf)

    def sample_clients(self, server: Server, federation: Federation) -> list[int]:
        """The usual draw, of those who are present."""
        return [c for c in super().sample_clients(server, federation) if self.present(c, server.round + 1)]

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

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Each cluster moves by its mean update; one at rest whose clients pull apart is split first (algorithm 5).

        All updates of a round are held at once: the similarity matrix needs them.
        """
        tree, tensors = Tree.of(server.facts), dict(server.tensors)
        round = server.round + 1
        members = [node.clients for node in tree.leaves()]
        for client in range(server.facts["clients"]):
            known = client in tree.walking or any(client in group for group in members)
            if known and not self.present(client, round):
                tree.leave(client)
            elif not known and self.present(client, round):
                tree.join(client)
        by_client = {update.client: update for update in updates}
        if self.settings.history:
            tensors["past"] = self.add_up(server, by_client)
        for client in sorted(tree.walking.keys() & by_client.keys()):
            update = by_client.pop(client).message.tensors["update"]
            found = branch_similarities(tree, tensors, tree.walking[client], update, server.facts["size"])
            tree.step(client, nearest_child(found))
        peak = server.facts["peak"]
        log = []
        for leaf in tree.leaves():
            active = [c for c in leaf.clients if c in by_client]
            if not active:
                continue
            entry = self.measure(active, by_client, server.facts, tensors.get("past"))
            peak = max(peak, entry["median_norm"])
            groups = self.split(tree, leaf.id, entry, active, round, peak)
            parts = {leaf.id: active}
            if groups is not None:
                children = tree.split(leaf.id, groups, round)
                parts = dict(zip(children, groups, strict=True))
                tensors[f"similarity/{leaf.id}"] = torch.from_numpy(entry["alpha"])
                for child, group in parts.items():
                    tensors[f"node/{child}"] = tensors[f"node/{leaf.id}"]
                    tensors[f"edge/{child}"] = torch.stack([by_client[c].message.tensors["update"] for c in group])
            for node, group in parts.items():
                tensors[f"node/{node}"] = tensors[f"node/{node}"] + self.mean(group, by_client)
            log.append({k: v for k, v in entry.items() if k not in ("alpha", "groups")} | {"node": leaf.id})
        return server.next(tensors, {**server.facts, **tree.facts(), "peak": peak, "log": log})

    def add_up(self, server: Server, by_client: dict[int, Update]) -> Tensor:
        """Each client's updates so far, older ones counting less, float32 (clients, p); zeros for who never sent any.

        Once a client holds few samples, what it pulls towards swings from round to round with what the others have
        just taught the model; the swings cancel in the sum, what the client's group shares does not.
        """
        size = server.facts["size"]
        past = server.tensors.get("past")
        past = torch.zeros(server.facts["clients"], size) if past is None else past.clone()
        for client, update in by_client.items():
            past[client] = self.settings.history * past[client] + update.message.tensors["update"][:size]
        return past

    def mean(self, group: list[int], by_client: dict[int, Update]) -> Tensor:
        """The mean update of some clients."""
        uniform = self.settings.weighting == "uniform"
        sizes = [1.0 if uniform else float(by_client[c].message.facts["n"]) for c in group]
        return mean_vector(
            (by_client[c].message.tensors["update"] for c in group), [size / sum(sizes) for size in sizes]
        )

    def measure(
        self, active: list[int], by_client: dict[int, Update], facts: dict[str, Any], past: Tensor | None = None
    ) -> dict[str, Any]:
        """Norms, similarities, best bipartition and, where the truth is planted, separation gaps of one cluster.

        Norms are of this round's updates; similarities of `past` (clients, p) where it is given, and then `gap_round`
        is the gap of this round's updates alone.
        """
        s, size = self.settings, facts["size"]
        rows = torch.stack([by_client[c].message.tensors["update"][:size] for c in active])
        norms = rows.double().norm(dim=1)
        entry: dict[str, Any] = {
            "mean_norm": float(self.mean(active, by_client)[:size].double().norm()),
            "max_norm": float(norms.max()),
            # What the floor is measured by: one client with a wild update does not move it.
            "median_norm": float(norms.median()),
        }
        if s.outliers:
            far = norms > s.outliers * entry["median_norm"]
            entry["outliers"] = [c for c, cut in zip(active, far.tolist(), strict=True) if cut]
        if len(active) < 2:
            return entry
        alphas = {"updates": cosine_matrix(rows if past is None else past[active])}
        if s.similarity != "updates":
            alphas["gradients"] = cosine_matrix(torch.stack([by_client[c].message.tensors["gradient"] for c in active]))
        used = "gradients" if s.similarity == "gradients" else "updates"
        groups = bipartition(alphas[used])
        entry |= {"alpha": alphas[used], "groups": groups, "cross": groups.cross}
        truth = np.array(facts["truth"])[active] if facts["truth"] else None
        if truth is not None and not s.adversaries:
            entry["gap"] = separation_gap(alphas[used], truth)
            if past is not None:
                entry["gap_round"] = separation_gap(cosine_matrix(rows), truth)
            if s.similarity == "both":
                entry["gap_gradients"] = separation_gap(alphas["gradients"], truth)
        return entry

    def split(
        self, tree: Tree, leaf: int, entry: dict[str, Any], active: list[int], round: int, peak: float
    ) -> list[list[int]] | None:
        """The two groups, in client ids, where a cluster is to be split; None where not."""
        s, node = self.settings, tree.nodes[leaf]
        rest = entry["mean_norm"] < s.ratio * entry["max_norm"] and entry["max_norm"] > s.floor * peak
        calm = node.calm + 1 if rest else 0
        tree.change(leaf, calm=calm)
        # A split needs everyone's update: who is missing in this round would be lost.
        if len(active) < 2 or len(active) < len(node.clients):
            return None
        if far := entry.get("outliers"):
            return [[c for c in active if c not in far], far]
        if s.criterion == "schedule":
            due = round in s.schedule
        else:
            settled = round >= s.first_split and round - node.born >= s.settle
            if s.criterion == "absolute":
                due = settled and entry["mean_norm"] < s.eps1 and entry["max_norm"] > s.eps2
            else:
                due = settled and calm >= s.patience
        if not due or not ready_to_split(entry["cross"], s.gamma_max):
            return None
        groups = entry["groups"]
        return [[active[i] for i in rows] for rows in (groups.first, groups.second)]

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Each honest client's accuracy with its cluster's model; the better of it and its ancestors; norms and gaps.

        `acc` is of the cluster's model, `acc_best` of the model on the client's path that is best on its validation
        samples, `acc_root` of the root's (the federated model before any split, once there was one).
        """
        tree = Tree.of(server.facts)
        vectors, network = self.vectors(), self.network()
        honest = [
            c for leaf in tree.leaves() for c in leaf.clients if c < server.facts["clients"] - self.settings.adversaries
        ]
        scores: dict[int, dict[int, Score]] = {c: {} for c in honest}
        for node in tree.nodes:
            vectors.load(network, server.tensors[f"node/{node.id}"])
            for c in honest:
                if node.id in tree.path(tree.place(c).id):
                    scores[c][node.id] = judge(network, clients[c].validation, self.context)
        own = {c: found[tree.place(c).id] for c, found in scores.items()}
        metrics = self.clients_metrics(own)
        best = [max(s.accuracy for s in found.values()) for found in scores.values()]
        metrics["acc_best"] = sum(best) / len(best)
        metrics["acc_root"] = sum(found[0].accuracy for found in scores.values()) / len(scores)
        metrics["below_root"] = float(
            sum(b < found[0].accuracy for b, found in zip(best, scores.values(), strict=True))
        )
        leaves = tree.leaves()
        metrics["clusters"] = float(len(leaves))
        for leaf in leaves:
            inside = [own[c] for c in leaf.clients if c in own]
            if inside:
                metrics[f"acc/{leaf.id}"] = sum(s.accuracy for s in inside) / len(inside)
                if self.context.spec.kind == "text":
                    loss = sum(s.loss for s in inside) / sum(s.number for s in inside)
                    metrics[f"perplexity/{leaf.id}"] = math.exp(min(loss, 50.0))
        for entry in server.facts["log"]:
            for key in ("mean_norm", "max_norm", "cross", "gap", "gap_round", "gap_gradients"):
                if key in entry:
                    metrics[f"{key}/{entry['node']}"] = entry[key]
        for key in ("gap", "gap_round", "gap_gradients"):
            gaps = [entry[key] for entry in server.facts["log"] if key in entry]
            if gaps:
                metrics[key] = max(gaps)
        return metrics | self.found(tree, honest, server.facts)

    def fits(self, tree: Tree, client: int, truth: list[int]) -> bool:
        """Whether the founders of a client's cluster are of the client's own planted group."""
        leaf = tree.place(client)
        return bool(leaf.founders) and all(truth[c] == truth[client] for c in leaf.founders)

    def found(self, tree: Tree, honest: list[int], facts: dict[str, Any]) -> dict[str, float]:
        """How the clusters compare with the planted groups; whether adversaries are by themselves."""
        metrics = {}
        if facts["truth"] and honest:
            truth = np.array([facts["truth"][c] for c in honest])
            cluster = np.array([tree.place(c).id for c in honest])
            metrics["groups_ari"] = ari(truth, cluster)
            joined = [c for c in honest if dict(self.settings.joins).get(c, 1) > 1]
            if joined:
                metrics["enrolled_right"] = sum(self.fits(tree, c, facts["truth"]) for c in joined) / len(joined)
            pairs = len(set(zip(truth.tolist(), cluster.tolist(), strict=True)))
            metrics["groups_exact"] = float(pairs == len(set(truth.tolist())) == len(set(cluster.tolist())))
        if self.settings.adversaries:
            mixed = [leaf for leaf in tree.leaves() if 0 < sum(c in honest for c in leaf.clients) < len(leaf.clients)]
            metrics["adversaries_apart"] = float(not mixed)
        return metrics
