"""UIFCA: unsupervised iterative federated clustering, one normalising flow per cluster.

A cluster round: K flows are trained by federated averaging, each client with its points of each cluster; then every
client gives each point to the flow under which it is likeliest. Who is in which cluster never leaves the client.

Where this departs from the paper's print: docs/methods.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from core.setting import setting
from core.streams import Streams
from methods.assignment import assign_samples
from methods.base import (
    Assignment,
    Client,
    ClientError,
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
from methods.scores.clustering import cluster_scores
from methods.training.averaging import WeightedMean
from methods.uifca.flow_method import FlowMethod, FlowSettings, fold
from methods.uifca.kfed import gather_centres, local_centres
from models.normalising_flows import bits_per_dimension

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class UIFCASettings(FlowSettings):
    """Hyper-parameters of UIFCA."""

    cluster_rounds: int = setting(20, "cluster rounds T", ge=1)
    comm_rounds: int = setting(100, "communication rounds tau of a cluster round", ge=1)
    warm_start: bool = setting(False, "begin a cluster round from the last one's flows instead of the common start")
    init: Literal["random", "kfed"] = setting("random", "the first assignment: random, or k-FED's")
    tries: int = setting(
        1, "random first assignments, each tried for `trial` cluster rounds; the one with the lowest loss goes on", ge=1
    )
    trial: int = setting(4, "cluster rounds of a try; all of them count in cluster_rounds", ge=1)
    stop: Literal["none", "validation"] = setting(
        "none",
        "against over-fitting: validation keeps each flow of the communication round with the best held-out loss",
    )
    held_out: float = setting(
        0.2, "stop validation: share of each client's points that no flow is trained on", gt=0, lt=1
    )
    folds: int = setting(
        1,
        "against over-fitting: of so many parts of each client's points, one in turn is kept from training in a "
        "cluster round, and only it is assigned anew after it; 1: all points train, and all are assigned",
        ge=1,
    )


class UIFCA(FlowMethod):
    """UIFCA as a method.

    Server facts: `cluster_round` and `comm_round` done; `phase`: centres (k-FED's), learn, or judge (how well a try
    did); `began`: the cluster round with which the present try began; `tried`: loss of each try so far, and whether it
    had settled; `chosen`: the one that goes on, -1 before.
    """

    name = "uifca"
    Settings = UIFCASettings
    settings: UIFCASettings

    def __init__(self, settings: UIFCASettings, context: Any) -> None:
        super().__init__(settings, context)
        s = settings
        if s.tries > 1 and (s.init != "random" or s.folds > 1):
            raise MethodError("method.tries is of random first assignments without folds: set init random and folds 1")
        if s.tries > 1 and s.tries * s.trial >= s.cluster_rounds:
            raise MethodError(
                f"method.tries {s.tries} of {s.trial} cluster rounds each leave none of cluster_rounds "
                f"{s.cluster_rounds}: lower tries or trial"
            )

    def init_server(self, federation: Federation) -> Server:
        """K starts; with `init: kfed` the first round gathers local centres."""
        phase = "centres" if self.settings.init == "kfed" else "learn"
        facts = {"phase": phase, "cluster_round": 0, "comm_round": 0, "still": 0, "empty": [], "diverged": []}
        facts |= {"changed": -1, "began": 0, "tried": [], "chosen": -1}
        return Server({"flows": self.starts()}, facts)

    def broadcast(self, server: Server, client: int) -> Message:
        """The flows; at the start of a cluster round clients assign anew by them."""
        facts = {key: server.facts[key] for key in ("phase", "cluster_round", "comm_round", "began", "chosen")}
        facts["try"] = len(server.facts["tried"])
        if facts["phase"] == "centres":
            return Message(facts=facts)
        tensors = {"flows": server.tensors["flows"]}
        if (labels := server.tensors.get(f"labels/{client}")) is not None:
            tensors["labels"] = labels
        return Message(tensors, facts)

    def client_update(self, message: Message, client: Client) -> Update:
        """Assign where a cluster round begins, then train each flow on the client's points of its cluster."""
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
        s, facts = self.settings, message.facts
        if not bool(torch.isfinite(client.train.x().float()).all()):
            raise ClientError(f"client {client.id} holds values that are not finite")
        if facts["phase"] == "centres":
            centres, local = local_centres(client, self.context.clusters, 10)
            return Update(Message({"centres": centres}), memory={"local": local})
        flows = message.tensors["flows"]
        assignment, changed = self.assign(message, client)
        if facts["phase"] == "judge":
            losses = self.losses(flows, client.train, client.streams).nan_to_num(nan=1e30, posinf=1e30)
            loss = float(losses.gather(1, assignment[:, None]).double().sum())
            judged = {"loss": loss, "count": len(assignment), "changed": changed}
            return Update(Message({}, judged), memory={**client.memory, f"try/{facts['try']}": assignment})
        held = self.held_out(client, facts["cluster_round"])
        if facts["comm_round"] == 0 and not s.warm_start:
            # Clients know the seed of the starts: they need not travel.
            flows = self.starts()
        tensors: Tensors = {}
        sent: dict[str, Any] = {"counts": [0] * len(flows), "changed": changed}
        if s.stop == "validation":
            losses = self.losses(flows, client.train.take(held), client.streams)
            of = assignment[held]
            picked = losses.gather(1, of[:, None]).squeeze(1)
            sent["held_loss"] = [float(picked[of == k].sum()) for k in range(len(flows))]
            sent["held_count"] = [int((of == k).sum()) for k in range(len(flows))]
        free = torch.ones(len(client.train), dtype=torch.bool, device=assignment.device)
        free[held] = False
        positions = {k: torch.nonzero((assignment == k) & free).squeeze(1) for k in range(len(flows))}
        sent["points"] = [len(rows) for rows in positions.values()]
        total, trained = 0.0, 0
        for k, fitted in self.fit_all(flows, {k: rows for k, rows in positions.items() if len(rows)}, client).items():
            if fitted is not None:
                tensors[f"flow/{k}"], loss = fitted
                sent["counts"][k] = len(positions[k])
                total, trained = total + loss, trained + 1
        if not trained:
            raise ClientError(
                f"client {client.id}: every flow diverged in round {client.streams.round}; lower local.lr"
            )
        metrics = {"loss": total / trained, "changed": float(changed), "trained": float(trained)}
        memory = {key: value for key, value in client.memory.items() if facts["chosen"] < 0 and key.startswith("try/")}
        return Update(Message(tensors, sent), memory={**memory, "assignment": assignment}, metrics=metrics)

    def held_out(self, client: Client, cluster_round: int) -> Tensor:
        """Positions that no flow is trained on in a cluster round (0-based): int64, in ascending order with `folds`."""
        s, count, device = self.settings, len(client.train), client.train.index.device
        if s.folds > 1:
            return fold(self.context.seed, client.id, count, s.folds, cluster_round).to(device)
        if s.stop == "none":
            return torch.arange(0, device=device)
        generator = Streams(self.context.seed, 0, client.id).torch("held out")
        return torch.randperm(count, generator=generator)[: int(s.held_out * count)].to(device)

    def assign(self, message: Message, client: Client) -> tuple[Tensor, int]:
        """The cluster of each point, int64 (n,), and how many changed; only a cluster round's start changes any."""
        facts, before = message.facts, client.memory.get("assignment")
        if facts["chosen"] >= 0 and any(key.startswith("try/") for key in client.memory):
            own = client.memory.get(f"try/{facts['chosen']}")
            if own is None:  # was not there when it was judged
                losses = self.losses(message.tensors["flows"], client.train, client.streams)
                own = losses.nan_to_num(nan=float("inf")).argmin(1)
            return own, len(own)
        begins = facts["comm_round"] == 0
        if before is None or (begins and facts["phase"] == "learn" and facts["cluster_round"] == facts["began"]):
            # Whoever was not there at the start begins at random, like the rest.
            if "labels" in message.tensors and "local" in client.memory:
                return message.tensors["labels"][client.memory["local"]], len(client.train)
            clusters = self.context.clusters
            draw = torch.randint(clusters, (len(client.train),), generator=client.streams.torch("assignment"))
            return draw.to(client.train.index.device), len(client.train)
        if not begins:
            return before, 0
        after = before.clone()
        free = self.reassigned(client, facts["cluster_round"] - 1)
        losses = self.losses(message.tensors["flows"], client.train.take(free), client.streams)
        after[free] = losses.nan_to_num(nan=float("inf")).argmin(1)
        return after, int((after != before).sum())

    def reassigned(self, client: Client, cluster_round: int) -> Tensor:
        """Positions that are assigned anew after a cluster round (0-based)."""
        if self.settings.folds > 1:
            return self.held_out(client, cluster_round)
        return torch.arange(len(client.train), device=client.train.index.device)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Flow k becomes its mean by points of cluster k; a flow that nobody trained begins anew."""
        s, facts = self.settings, dict(server.facts)
        if facts["phase"] == "centres":
            rng = Streams(self.context.seed).numpy("kfed server")
            tensors = gather_centres(updates, self.context.clusters, 10, rng)
            del tensors["centres"]
            return server.next({**server.tensors, **tensors}, {**facts, "phase": "learn"})
        if facts["phase"] == "judge":
            return self.judged(server, updates)
        begins = facts["comm_round"] == 0
        starts = server.tensors["flows"] if s.warm_start or not begins else self.starts()
        means = [WeightedMean() for _ in starts]
        points, counts, changed = [0] * len(starts), [0] * len(starts), 0
        held = torch.zeros(2, len(starts), dtype=torch.float64)
        for update in updates:
            sent = update.message.facts
            changed += sent["changed"]
            for k, count in enumerate(sent["counts"]):
                points[k] += sent["points"][k]
                counts[k] += count
                if count:
                    means[k].add({"flow": update.message.tensors[f"flow/{k}"]}, count)
            if "held_loss" in sent:
                held += torch.tensor([sent["held_loss"], sent["held_count"]], dtype=torch.float64)
        flows = torch.stack(
            [
                mean.mean()["flow"] if mean.weight else start
                for mean, start in zip(means, self.restarts(starts), strict=True)
            ]
        )
        facts["empty"] = [k for k, n in enumerate(points) if not n]
        facts["diverged"] = [k for k, n in enumerate(counts) if not n and points[k]]
        facts["changed"] = changed if begins else facts["changed"]
        kept = {key: value for key, value in server.tensors.items() if key.startswith("try/")}
        tensors = {**kept, "flows": flows}
        if s.stop == "validation":
            tensors |= self.best(server, starts, held, begins)
        facts["comm_round"] += 1
        if begins and facts["cluster_round"] > facts["began"]:
            facts["still"] = 0 if changed else facts["still"] + 1
        # Each part of the points must have had its turn.
        settled = begins and facts["still"] >= s.folds
        if settled:
            # The assignment that did not change was made by the flows that this round began from.
            facts["comm_round"] = 0
            tensors["flows"] = server.tensors["flows"]
        elif facts["comm_round"] == s.comm_rounds:
            facts["cluster_round"] += 1
            facts["comm_round"] = 0
            if s.stop == "validation":
                tensors["flows"] = tensors["best"]
        if s.tries > 1 and facts["chosen"] < 0:
            if settled or facts["cluster_round"] - facts["began"] == s.trial:
                facts["phase"] = "judge"
            return server.next(tensors, facts)
        finished = settled or facts["cluster_round"] == s.cluster_rounds
        return server.next(tensors, facts, finished=finished)

    def judged(self, server: Server, updates: Iterable[Update]) -> Server:
        """After a try: the next one from the common starts, or, after the last, the best goes on."""
        facts = dict(server.facts)
        sent = [update.message.facts for update in updates]
        loss = sum(one["loss"] for one in sent) / sum(one["count"] for one in sent)
        changed = sum(one["changed"] for one in sent)
        tried = [*facts["tried"], [loss, not changed]]
        facts |= {"tried": tried, "phase": "learn", "comm_round": 0, "still": 0, "changed": changed}
        facts["began"] = facts["cluster_round"]
        tensors = {key: value for key, value in server.tensors.items() if key.startswith("try/")}
        tensors[f"try/{len(tried) - 1}"] = server.tensors["flows"]
        if len(tried) < self.settings.tries:
            return server.next({**tensors, "flows": self.starts()}, facts)
        best = min(range(len(tried)), key=lambda k: tried[k][0])
        facts["chosen"] = best
        return server.next({"flows": tensors[f"try/{best}"]}, facts, finished=tried[best][1])

    def restarts(self, rows: Tensor) -> Sequence[Tensor]:
        """Where a flow that nobody trained goes on: at its start."""
        return list(rows if self.settings.warm_start else self.starts())

    def best(self, server: Server, flows: Tensor, held: Tensor, begins: bool) -> Tensors:
        """The flows with the best held-out loss of this cluster round so far (the clients judged `flows`)."""
        loss = (held[0] / held[1].clamp(min=1)).float()
        loss = torch.where(held[1] > 0, loss, torch.inf)
        if begins:
            return {"best": flows.clone(), "best_loss": loss}
        better = loss < server.tensors["best_loss"]
        return {
            "best": torch.where(better[:, None], flows, server.tensors["best"]),
            "best_loss": torch.where(better, loss, server.tensors["best_loss"]),
        }

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Purity, ACC, NMI and ARI of what the clients would hold by the flows of now; mean losses of right and wrong.

        `loss_right` and `loss_wrong` are -log p in nats, of images in bits per dimension, and so is `loss_all`.
        With `folds`, points that the flows are trained on stay where they are. `purity_held` is of the points kept from
        training, where there are any.
        """
        if server.facts["phase"] == "centres" or not server.round:
            return {}
        facts, now = server.facts, self.held(server, clients)
        metrics = {
            "cluster_round": float(facts["cluster_round"]),
            "changed": float(facts["changed"]),
            "empty": float(len(facts["empty"])),
            "diverged": float(len(facts["diverged"])),
            "clusters_used": float(len(now.cluster.unique())),
        }
        spec = self.context.spec
        loss = bits_per_dimension(-now.loss, math.prod(spec.shape)) if spec.kind == "image" else now.loss
        if bool(torch.isfinite(loss).all()):
            metrics["loss_all"] = float(loss.mean())
        if now.truth is None:
            return metrics
        metrics |= cluster_scores(now.truth.numpy(), now.cluster.numpy())
        right = majority(now.truth, now.cluster)
        for name, rows in (("loss_right", right), ("loss_wrong", ~right)):
            if bool(rows.any()) and bool(torch.isfinite(loss[rows]).all()):
                metrics[name] = float(loss[rows].mean())
        if bool(now.kept.any()):
            scores = cluster_scores(now.truth[now.kept].numpy(), now.cluster[now.kept].numpy())
            metrics["purity_held"] = scores["purity"]
        return metrics

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """What the clients would hold by the flows of now, test samples where they are likeliest; posteriors."""
        if server.facts["phase"] == "centres" or not server.round:
            raise MethodError("UIFCA has assigned no point before its first cluster round")
        held = (torch.cat([client.train.index for client in clients]), self.held(server, clients).cluster)
        return assign_samples(self.predictor(server), evaluation, None, held=held)

    def figures(self, history: RunHistory) -> dict[str, Figure]:
        """Purity and losses over rounds; clusters against classes and images drawn from each flow of the last state."""
        from methods.uifca.figures import (  # training needs no matplotlib
            confusion_figure,
            rounds_figure,
            samples_figure,
        )

        drawn = {"purity": rounds_figure(history.rounds)} if "purity" in history.rounds else {}
        server = history.server
        if server is None or not server.round or server.facts["phase"] == "centres":
            return drawn
        held = self.held(server, history.clients)
        if held.truth is not None:
            truth, cluster = held.truth.numpy(), held.cluster.numpy()
            drawn["confusion"] = confusion_figure(truth, cluster, self.context.clusters, history.class_names)
        if self.context.spec.kind == "image":
            drawn["samples"] = samples_figure(self.flow(), server.tensors["flows"], self.context.seed)
        return drawn

    def held(self, server: Server, clients: Clients) -> Held:
        """What all clients' points would be given to by the flows of now, clients one after another."""
        # Of the cluster round whose flows these are: a finished one has already been counted.
        during = server.facts["cluster_round"] - (1 if server.facts["comm_round"] == 0 else 0)
        found, truth, losses, kept = [], [], [], []
        for client in clients:
            rows = self.losses(server.tensors["flows"], client.train, client.streams)
            cluster = rows.nan_to_num(nan=float("inf")).argmin(1)
            if self.settings.folds > 1 and "assignment" in client.memory:
                free = self.reassigned(client, during)
                cluster, likeliest = client.memory["assignment"].clone(), cluster
                cluster[free] = likeliest[free]
            losses.append(rows.gather(1, cluster[:, None]).squeeze(1).cpu())
            found.append(cluster.cpu())
            out = torch.zeros(len(client.train), dtype=torch.bool)
            out[self.held_out(client, during).cpu()] = True
            kept.append(out)
            if client.train.data.train_y is not None:
                truth.append(client.train.y().cpu())
        return Held(torch.cat(found), torch.cat(truth) if truth else None, torch.cat(losses), torch.cat(kept))


class Held(NamedTuple):
    """Of every point: its cluster, its true class (None: no labels), its loss, whether it is kept from training."""

    cluster: Tensor
    truth: Tensor | None
    loss: Tensor
    kept: Tensor


def majority(truth: Tensor, cluster: Tensor) -> Tensor:
    """Whether each point is of its cluster's most frequent class, bool (n,)."""
    right = torch.zeros(len(truth), dtype=torch.bool)
    for k in cluster.unique():
        inside = cluster == k
        right[inside] = truth[inside] == truth[inside].mode().values
    return right
