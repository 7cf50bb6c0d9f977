"""UIFCA: unsupervised iterative federated clustering, one normalising flow per cluster.

A cluster round: K flows are trained by federated averaging, each client with its points of each cluster; then every
client gives each point to the flow under which it is likeliest. Who is in which cluster never leaves the client.

Where this departs from the paper's print: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from data.setting import setting
from data.streams import Streams
from data.view import Samples
from methods.averaging import WeightedMean
from methods.base import (
    Client,
    ClientError,
    Clients,
    Context,
    Evaluation,
    Federation,
    LocalSettings,
    Message,
    Method,
    MethodError,
    Prediction,
    Server,
    Tensors,
    Update,
)
from methods.kfed import gather_centres, local_centres
from methods.local import build_optimiser, seeded
from methods.metrics import cluster_scores
from methods.vectors import Vectors
from models.flows import Flow, build_flow

BATCH = 1000
"""Points in one pass when losses are only read."""


@dataclass(frozen=True)
class UIFCASettings:
    """Hyper-parameters of UIFCA."""

    cluster_rounds: int = setting(20, "cluster rounds T", ge=1)
    comm_rounds: int = setting(100, "communication rounds tau of a cluster round", ge=1)
    steps: int = setting(100, "local steps M of a communication round", ge=1)
    flow: Literal["auto", "affine", "tabular", "cycle", "standard"] = setting(
        "auto", "auto: affine of vectors, cycle of images"
    )
    width: int = setting(32, "filters of a flow's networks; tabular: a quarter of the hidden width", ge=1)
    blocks: int = setting(2, "residual blocks of a flow's networks", ge=1)
    spread: float = setting(0.01, "deviation of the K starts around their common one", ge=0)
    warm_start: bool = setting(False, "begin a cluster round from the last one's flows instead of the common start")
    init: Literal["random", "kfed"] = setting("random", "the first assignment: random, or k-FED's")
    background: bool = setting(False, "images: pixels below 0.01 become uniform noise")
    stop: Literal["none", "validation"] = setting(
        "none",
        "against over-fitting: validation keeps each flow of the communication round with the best held-out loss",
    )
    held_out: float = setting(
        0.2, "stop validation: share of each client's points that no flow is trained on", gt=0, lt=1
    )


class FlowMethod(Method):
    """What methods share whose server holds K flows as rows of one tensor (K, p)."""

    kinds = ("vector", "image")
    local_defaults = LocalSettings(epochs=1, batch=100, optimiser="sgd", lr=1e-3)
    settings: Any

    def flow(self) -> Flow:
        """A flow with the run's common start."""
        s, c = self.settings, self.context
        name = {"vector": "affine", "image": "cycle"}[c.spec.kind] if s.flow == "auto" else s.flow
        try:
            network = seeded(lambda: build_flow(name, c.spec.shape, s.width, s.blocks), c, "flow")
        except ValueError as error:
            raise MethodError(f"method.flow: {error}") from None
        assert isinstance(network, Flow)
        return network

    def starts(self) -> Tensor:
        """The K starts (K, p): the common one plus N(0, spread^2) on every parameter."""
        vectors = Vectors(flow := self.flow())
        common = vectors.flatten(flow)
        rows = []
        for k in range(self.context.clusters):
            noise = torch.randn(vectors.size, generator=Streams(self.context.seed).torch(f"flow start {k}"))
            row = common.clone()
            row[: vectors.size] += self.settings.spread * noise.to(row)
            rows.append(row)
        return torch.stack(rows)

    def points(self, samples: Samples, streams: Streams, purpose: str) -> Callable[[Tensor], Tensor]:
        """A function from positions to points as flows take them, with seeded noise on images."""
        generator = streams.torch(purpose, self.context.device)
        return lambda positions: flow_input(samples, positions, self.context, self.settings.background, generator)

    def losses(self, flows: Tensor, samples: Samples, streams: Streams) -> Tensor:
        """-log p of each point under each flow, float32 (n, K); not finite where a flow has diverged."""
        vectors = Vectors(flow := self.flow())
        flow.eval()
        columns = []
        with torch.no_grad():
            for row in flows:
                vectors.load(flow, row)
                # The same noise for every flow.
                points = self.points(samples, streams, "flow noise")
                positions = torch.arange(len(samples), device=samples.index.device)
                columns.append(torch.cat([-flow.log_prob(points(part)) for part in positions.split(BATCH)]))
        return torch.stack(columns, 1).float()

    def fit(self, start: Tensor, positions: Tensor, client: Client, k: int) -> tuple[Tensor, float] | None:
        """`steps` minibatch steps of flow k on some of a client's points; None where it diverged.

        Minibatches are drawn with replacement. Returns the trained vector and the mean loss.
        """
        local = self.context.local
        vectors = Vectors(flow := self.flow())
        vectors.load(flow, start)
        flow.train()
        draws = minibatches(client.streams, k, len(positions), self.settings.steps, local.batch)
        points = self.points(client.train, client.streams, f"flow noise {k}")
        optimiser = build_optimiser(flow.parameters(), local, 1, self.context.device)
        total = 0.0
        for rows in draws:
            loss = -flow.log_prob(points(positions[rows.to(positions.device)])).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += float(loss.detach())
        trained = vectors.flatten(flow)
        return (trained, total / len(draws)) if bool(torch.isfinite(trained).all()) else None

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The likeliest flow; its posterior among the K (equal priors) and the K log-densities as embedding."""
        vectors, flows = Vectors(self.flow()), []
        for row in server.tensors["flows"]:
            flow = self.flow()
            vectors.load(flow, row)
            flows.append(flow.eval())

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device)
            x = x * 255 + 0.5 if self.context.spec.kind == "image" else x
            log_prob = torch.stack([flow.log_prob(x) for flow in flows], 1)
            return Prediction(log_prob.argmax(1), log_prob.softmax(1), log_prob)

        return predict


def minibatches(streams: Streams, k: int, count: int, steps: int, batch: int) -> Tensor:
    """Rows of minibatches among `count` points, with replacement: int64 (steps, batch)."""
    return torch.randint(count, (steps, batch), generator=streams.torch(f"batches {k}"))


def flow_input(
    samples: Samples, positions: Tensor, context: Context, background: bool, generator: torch.Generator
) -> Tensor:
    """Points as flows take them: vectors as they are; images dequantised to [0, 256).

    Args:
        samples: to take from.
        positions: int64 (m,).
        context: of the run.
        background: pixels below 0.01 of the range become uniform over the range.
        generator: of the noise.
    """
    x = samples.raw(positions)
    if context.spec.kind != "image":
        return x.float()
    noise = torch.rand(x.shape, generator=generator, device=x.device)
    values = x.float() + noise
    if background:
        values = torch.where(x < 256 * 0.01, 256 * noise, values)
    return values


class UIFCA(FlowMethod):
    """UIFCA as a method. Server facts: `cluster_round` and `comm_round` done, `phase` (centres or learn)."""

    name = "uifca"
    Settings = UIFCASettings
    settings: UIFCASettings

    def init_server(self, federation: Federation) -> Server:
        """K starts; with `init: kfed` the first round gathers local centres."""
        phase = "centres" if self.settings.init == "kfed" else "learn"
        facts = {"phase": phase, "cluster_round": 0, "comm_round": 0, "changed": -1, "empty": [], "diverged": []}
        return Server({"flows": self.starts()}, facts)

    def broadcast(self, server: Server, client: int) -> Message:
        """The flows; at the start of a cluster round clients assign anew by them."""
        facts = {key: server.facts[key] for key in ("phase", "cluster_round", "comm_round")}
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
        held = self.held_out(client)
        if facts["comm_round"] == 0 and not s.warm_start:
            # Clients know the seed of the starts: they need not travel.
            flows = self.starts()
        tensors: Tensors = {}
        sent: dict[str, Any] = {"counts": [0] * len(flows), "changed": changed, "points": [0] * len(flows)}
        if s.stop == "validation":
            losses = self.losses(flows, client.train.take(held), client.streams)
            of = assignment[held]
            picked = losses.gather(1, of[:, None]).squeeze(1)
            sent["held_loss"] = [float(picked[of == k].sum()) for k in range(len(flows))]
            sent["held_count"] = [int((of == k).sum()) for k in range(len(flows))]
        free = torch.ones(len(client.train), dtype=torch.bool, device=assignment.device)
        free[held] = False
        total, trained = 0.0, 0
        for k in range(len(flows)):
            positions = torch.nonzero((assignment == k) & free).squeeze(1)
            sent["points"][k] = len(positions)
            if not len(positions):
                continue
            fitted = self.fit(flows[k], positions, client, k)
            if fitted is not None:
                tensors[f"flow/{k}"], loss = fitted
                sent["counts"][k] = len(positions)
                total, trained = total + loss, trained + 1
        if not trained:
            raise ClientError(
                f"client {client.id}: every flow diverged in round {client.streams.round}; lower local.lr"
            )
        metrics = {"loss": total / trained, "changed": float(changed), "trained": float(trained)}
        return Update(Message(tensors, sent), memory={"assignment": assignment}, metrics=metrics)

    def held_out(self, client: Client) -> Tensor:
        """Positions that no flow is trained on: the same in every round."""
        if self.settings.stop == "none":
            return torch.arange(0, device=client.train.index.device)
        generator = Streams(self.context.seed, 0, client.id).torch("held out")
        count = int(self.settings.held_out * len(client.train))
        return torch.randperm(len(client.train), generator=generator)[:count].to(client.train.index.device)

    def assign(self, message: Message, client: Client) -> tuple[Tensor, int]:
        """The cluster of each point, int64 (n,), and how many changed; only a cluster round's start changes any."""
        before = client.memory.get("assignment")
        if before is None:
            # Whoever was not there at the start begins at random, like the rest.
            if "labels" in message.tensors and "local" in client.memory:
                return message.tensors["labels"][client.memory["local"]], len(client.train)
            clusters = self.context.clusters
            draw = torch.randint(clusters, (len(client.train),), generator=client.streams.torch("assignment"))
            return draw.to(client.train.index.device), len(client.train)
        if message.facts["comm_round"] or message.facts["cluster_round"] == 0:
            return before, 0
        losses = self.losses(message.tensors["flows"], client.train, client.streams)
        after = losses.nan_to_num(nan=float("inf")).argmin(1)
        return after, int((after != before).sum())

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Flow k becomes its mean by points of cluster k; a flow that nobody trained begins anew."""
        s, facts = self.settings, dict(server.facts)
        if facts["phase"] == "centres":
            rng = Streams(self.context.seed).numpy("kfed server")
            tensors = gather_centres(updates, self.context.clusters, 10, rng)
            del tensors["centres"]
            return server.next({**server.tensors, **tensors}, {**facts, "phase": "learn"})
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
        tensors = {"flows": flows}
        if s.stop == "validation":
            tensors |= self.best(server, starts, held, begins)
        facts["comm_round"] += 1
        settled = begins and facts["cluster_round"] > 0 and changed == 0
        if facts["comm_round"] == s.comm_rounds:
            facts["cluster_round"] += 1
            facts["comm_round"] = 0
            if s.stop == "validation":
                tensors["flows"] = tensors["best"]
        finished = settled or facts["cluster_round"] == s.cluster_rounds
        if settled:
            tensors["flows"] = server.tensors["flows"]  # the assignment that did not change was made by these
        return server.next(tensors, facts, finished=finished)

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
        """Purity, ACC, NMI and ARI of what the clients would assign by the flows of now; mean losses of right, wrong.

        `purity_held` is of the points kept from training, where there are any.
        """
        if server.facts["phase"] == "centres" or not server.round:
            return {}
        found, truth, losses, held = [], [], [], []
        for client in clients:
            rows = self.losses(server.tensors["flows"], client.train, client.streams)
            losses.append(rows.min(1).values)
            found.append(rows.nan_to_num(nan=float("inf")).argmin(1))
            kept = torch.zeros(len(client.train), dtype=torch.bool, device=rows.device)
            kept[self.held_out(client)] = True
            held.append(kept)
            if client.train.data.train_y is not None:
                truth.append(client.train.y())
        cluster = torch.cat(found).cpu()
        facts = server.facts
        metrics = {
            "cluster_round": float(facts["cluster_round"]),
            "changed": float(facts["changed"]),
            "empty": float(len(facts["empty"])),
            "diverged": float(len(facts["diverged"])),
            "clusters_used": float(len(cluster.unique())),
        }
        if not truth:
            return metrics
        y = torch.cat(truth).cpu()
        metrics |= cluster_scores(y.numpy(), cluster.numpy())
        right = majority(y, cluster)
        loss = torch.cat(losses).cpu()
        for name, rows in (("loss_right", right), ("loss_wrong", ~right)):
            if bool(rows.any()) and bool(torch.isfinite(loss[rows]).all()):
                metrics[name] = float(loss[rows].mean())
        kept = torch.cat(held).cpu()
        if bool(kept.any()):
            metrics["purity_held"] = cluster_scores(y[kept].numpy(), cluster[kept].numpy())["purity"]
        return metrics


def majority(truth: Tensor, cluster: Tensor) -> Tensor:
    """Whether each point is of its cluster's most frequent class, bool (n,)."""
    right = torch.zeros(len(truth), dtype=torch.bool)
    for k in cluster.unique():
        inside = cluster == k
        right[inside] = truth[inside] == truth[inside].mode().values
    return right
