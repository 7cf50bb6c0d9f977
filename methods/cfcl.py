"""CF-CL: contrastive learning with smart device-to-device exchange.

Devices on a graph train an embedding by local steps, averaged by the server now and then. Once each sends its
neighbours a small reserve of its data; after that, a neighbour chooses by the reserve what would help the receiver
most, and sends it.

A round of the engine is a push, a pull, or a stretch of local steps with or without averaging: the server's facts say
which is next. Where this departs from the paper: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from data.augment import Recipe, normalise
from data.setting import setting
from data.streams import Streams
from data.topology import check_edges, neighbours, random_geometric_graph
from data.view import Samples
from methods.base import (
    Client,
    ClientError,
    Clients,
    Evaluation,
    Federation,
    LocalSettings,
    Message,
    Method,
    MethodError,
    ModelSettings,
    Prediction,
    Server,
    Tensors,
    Update,
)
from methods.contrastive import contrastive
from methods.evaluation import embed_with, evaluate_features, features_only
from methods.local import build_optimiser, run_steps, seeded, view_recipe, views
from methods.optimiser_state import optimiser_tensors, restore_optimiser
from methods.representation import probe_accuracy
from methods.selection import Macro, draw, importance, reserve, triplet_loss
from methods.ssd_losses import align_loss, uniform_loss
from methods.vectors import Vectors, mean_vector
from models.encoders import build_encoder
from models.heads import UnitEmbedding

PROBED = 5000
"""Between the ends the probe learns from, and is judged on, at most so many samples."""


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Literal["cfcl", "uniform", "none"] = setting("cfcl", "what is pulled: by importance, uniformly, nothing")
    steps: int = setting(2000, "local steps in all", ge=1)
    tau_a: int = setting(25, "steps between two averagings", ge=1)
    tau_p: int = setting(25, "steps between two pulls", ge=1)
    loss: Literal["triplet", "simclr", "ssd"] = setting(
        "triplet", "local loss: triplet; NT-Xent of FedSimCLR; alignment and uniformity of SSD"
    )
    margin: float = setting(1.0, "of the triplet loss, also where samples are selected", ge=0)
    tau: float = setting(0.5, "temperature of simclr", gt=0)
    reserve: int = setting(20, "samples of a reserve", ge=0)
    reserve_kind: Literal["kmeans", "random"] = setting("kmeans", "how a reserve is chosen")
    candidates: int = setting(200, "samples a transmitter considers", ge=1)
    budget: int = setting(20, "samples pulled over a link", ge=0)
    clusters: int = setting(4, "clusters of macro importance", ge=1)
    macro: Macro = setting("share", "macro importance: n_tx / (n_tx + n_res), or n_tx / n_res as printed")
    heat_first: float = setting(1.0, "lambda of micro importance at the start", ge=0)
    heat_last: float = setting(5.0, "lambda at the end; linear in between", ge=0)
    model: Literal["global", "local"] = setting("global", "whose model selects: the last average, or the receiver's")
    buffer: Literal["purge", "unlimited"] = setting("purge", "what was pulled before: dropped at a pull, or kept")
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting(
        (), "links instead of a random graph; a file name is read as edge list"
    )
    failed: tuple[tuple[int, int], ...] = setting((), "links of the graph that carry nothing")
    consent: tuple[tuple[int, int], ...] = setting((), "(device, n): shares at most n samples in all, 0 none")


def plan(step: int, steps: int, tau_p: int, pulled: bool, exchanging: bool) -> str:
    """What comes next at a step: push, pull, train or end."""
    if step >= steps:
        return "end"
    return "pull" if exchanging and step % tau_p == 0 and not pulled else "train"


class CFCL(Method):
    """CF-CL as a method. Server facts: `step`, `next` (push, pull, train), graph; tensors: the last average."""

    name = "cfcl"
    Settings = CFCLSettings
    settings: CFCLSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    model_defaults = ModelSettings("pooled-conv")

    def network(self) -> UnitEmbedding:
        """A fresh network with the run's initial weights."""
        c = self.context
        network = seeded(lambda: UnitEmbedding(build_encoder(c.model.encoder, c.spec.shape)), c)
        assert isinstance(network, UnitEmbedding)
        return network

    def recipe(self) -> Recipe:
        """Resized crop of at least half, flip, Gaussian blur."""
        return view_recipe(self.context, Recipe(crop=(0.5, 1.0), flip=0.5, blur=0.5))

    def init_server(self, federation: Federation) -> Server:
        """Initial weights and the graph.

        Raises:
            MethodError: partial participation; DataError: a graph that cannot be.
        """
        s, count = self.settings, federation.clients
        if self.context.fraction < 1:
            raise MethodError("cfcl needs every device in every round: set participation.fraction=1")
        if s.edges:
            edges = check_edges(count, s.edges)
        elif count == 1:
            edges = ()
        else:
            edges = random_geometric_graph(count, min(s.degree, count - 1), federation.streams.numpy("graph"))
        dead = {tuple(sorted(link)) for link in s.failed}
        live = [list(edge) for edge in edges if edge not in dead]
        vectors = Vectors(network := self.network())
        exchanging = s.selection != "none" and bool(live)
        facts = {
            "step": 0,
            "next": "push" if exchanging else "train",
            "averaged": True,
            "averagings": 0,
            "clients": count,
            "edges": [list(edge) for edge in edges],
            "live": live,
        }
        return Server({"weights": vectors.flatten(network)}, facts)

    def broadcast(self, server: Server, client: int) -> Message:
        """What to do; the average where there is a new one."""
        f = server.facts
        facts: dict[str, Any] = {k: f[k] for k in ("step", "next", "averagings")}
        facts["near"] = neighbours(f["clients"], f["live"])[client]
        if f["next"] == "train":
            facts["steps"] = self.stretch(f["step"])
        return Message({"weights": server.tensors["weights"]} if f["averaged"] else {}, facts)

    def stretch(self, step: int) -> int:
        """Local steps until the next averaging, pull or end."""
        s = self.settings
        until = [s.tau_a - step % s.tau_a, s.steps - step]
        if s.selection != "none":
            until.append(s.tau_p - step % s.tau_p)
        return min(until)

    # --- devices --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Push reserves, answer with pulled samples, or train."""
        if len(client.train) < 2:
            raise ClientError(f"client {client.id} has {len(client.train)} training samples; at least 2 are needed")
        memory = dict(client.memory)
        if "weights" in message.tensors:
            memory["global"] = memory["weights"] = message.tensors["weights"]
        self.read_inbox(client, memory, message.facts)
        act = {"push": self.push, "pull": self.pull, "train": self.train}[message.facts["next"]]
        return act(message, client, memory)

    def read_inbox(self, client: Client, memory: Tensors, facts: dict[str, Any]) -> None:
        """Keep neighbours' reserves and models; take up what was pulled, dropping the earlier unless unlimited."""
        arrived = []
        for sender, letter in client.inbox:
            if "reserve" in letter.samples:
                memory[f"reserve/{sender}"] = letter.samples["reserve"].cpu()
            if "model" in letter.tensors:
                memory[f"model/{sender}"] = letter.tensors["model"]
            if "pulled" in letter.samples:
                index = letter.samples["pulled"].cpu()
                row = torch.full((len(index),), sender), torch.full((len(index),), int(letter.facts["step"]))
                arrived.append(torch.stack((index, *row), 1))
        if arrived:
            new = torch.cat(arrived)
            old = memory.get("received", new[:0])
            memory["received"] = torch.cat((old, new))
            held = (
                torch.cat((memory.get("pulled", new[:0, 0]), new[:, 0]))
                if self.settings.buffer == "unlimited"
                else new[:, 0]
            )
            memory["pulled"] = held.clone()

    def allowed(self, client: int, memory: Tensors) -> int | None:
        """How many samples a device may still share; None: any number."""
        limit = dict(self.settings.consent).get(client)
        return None if limit is None else max(0, limit - int(memory.get("shared", torch.tensor(0))))

    def give(self, client: Client, memory: Tensors, positions: Tensor) -> Tensor:
        """The indices of samples that a device shares, cut to what it consents to, and counted."""
        left = self.allowed(client.id, memory)
        if left is not None:
            positions = positions[:left]
        memory["shared"] = memory.get("shared", torch.tensor(0)) + len(positions)
        return client.train.index[positions.to(client.train.index.device)].cpu()

    def embedding_of(self, vector: Tensor) -> Callable[[Samples, torch.Generator | None], Tensor]:
        """A function from samples to embeddings (n, e) on the CPU, of augmented samples where given a generator."""
        network = self.network()
        Vectors(network).load(network, vector)
        network.eval()
        recipe = self.recipe()

        @torch.no_grad()
        def embed(samples: Samples, generator: torch.Generator | None = None) -> Tensor:
            parts = []
            for positions in torch.arange(len(samples), device=samples.index.device).split(512):
                if generator is None:
                    x = normalise(samples.x(positions)).contiguous(memory_format=torch.channels_last)
                else:
                    x = views(samples, positions, recipe, generator)[: len(positions)]
                with self.context.autocast():
                    parts.append(network(x).float().cpu())
            return torch.cat(parts)

        return embed

    def push(self, message: Message, client: Client, memory: Tensors) -> Update:
        """A reserve for each neighbour (eq. 6), once."""
        s = self.settings
        x = self.embedding_of(memory["global"])(client.train, None)
        peers = {}
        for near in message.facts["near"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {near}")
            index = self.give(client, memory, reserve(x, s.reserve, rng, s.reserve_kind))
            if len(index):
                peers[near] = Message(samples={"reserve": index})
        return Update(Message(facts={"n": len(client.train)}), peers, memory)

    def pull(self, message: Message, client: Client, memory: Tensors) -> Update:
        """What each neighbour is sent (eq. 7 to 12)."""
        s, facts = self.settings, message.facts
        # Drawn once per averaging, and the same until the next.
        fresh = Streams(self.context.seed, facts["averagings"], client.id).numpy("candidates")
        count = min(s.candidates, len(client.train))
        positions = torch.from_numpy(np.sort(fresh.choice(len(client.train), count, replace=False)))
        candidates = client.train.take(positions.to(client.train.index.device))
        heat = s.heat_first + (s.heat_last - s.heat_first) * facts["step"] / s.steps
        peers = {}
        embed = self.embedding_of(memory["global"])
        mine = embed(candidates, None) if s.selection == "cfcl" and s.model == "global" else None
        for near in facts["near"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"pull {near}")
            if s.selection == "uniform":
                chosen = torch.from_numpy(np.sort(rng.choice(count, min(s.budget, count), replace=False)))
            else:
                if s.model == "local":
                    embed = self.embedding_of(memory.get(f"model/{near}", memory["global"]))
                x = embed(candidates, None) if mine is None else mine
                held = memory.get(f"reserve/{near}", torch.zeros(0, dtype=torch.int64))
                others = replace(
                    client.train,
                    index=held.to(client.train.index.device),
                    transformation=torch.zeros(len(held), dtype=torch.int64, device=client.train.index.device),
                )
                generator = client.streams.torch(f"anchors {near}", self.context.device)
                anchors = embed(others, None) if len(held) else x[:0]
                positives = embed(others, generator) if len(held) else x[:0]
                p = importance(
                    x,
                    anchors,
                    positives,
                    clusters=s.clusters,
                    heat=heat,
                    margin=s.margin,
                    kind=s.macro,
                    rng=rng,
                )
                chosen = draw(p, s.budget, rng)
            index = self.give(client, memory, positions[chosen])
            if len(index):
                peers[near] = Message(facts={"step": facts["step"]}, samples={"pulled": index})
        return Update(Message(facts={"n": len(client.train)}), peers, memory)

    def train(self, message: Message, client: Client, memory: Tensors) -> Update:
        """Local steps on own and pulled samples (eq. 4); the model goes up where an averaging follows."""
        s, facts = self.settings, message.facts
        pulled = memory.get("pulled", torch.zeros(0, dtype=torch.int64)).to(client.train.index.device)
        none = torch.zeros(len(pulled), dtype=torch.int64, device=pulled.device)
        samples = replace(
            client.train,
            index=torch.cat((client.train.index, pulled)),
            transformation=torch.cat((client.train.transformation, none)),
        )
        vectors = Vectors(network := self.network())
        vectors.load(network, memory["weights"])
        optimiser = build_optimiser(network.parameters(), self.context.local, 1, self.context.device)
        if any(name.startswith("optimiser.") for name in memory):
            restore_optimiser(optimiser, memory)
        network.train()
        recipe = self.recipe()
        generator = client.streams.torch("views", self.context.device)
        order = client.streams.torch("batches")
        size = min(self.context.local.batch, len(samples))

        def step(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            x = views(samples, positions, recipe, generator)
            with self.context.autocast():
                z_a, z_b = network(x).chunk(2)
            return self.loss(z_a, z_b), {}

        rows = (torch.randperm(len(samples), generator=order)[:size] for _ in range(facts["steps"]))
        device = samples.index.device
        metrics = run_steps(client, (row.to(device) for row in rows), optimiser, step)
        memory["weights"] = vectors.flatten(network)
        memory = {k: t for k, t in memory.items() if not k.startswith("optimiser.")} | optimiser_tensors(optimiser)
        after = facts["step"] + facts["steps"]
        points = memory.get("points", torch.zeros(2, dtype=torch.float64))
        memory["points"] = points + torch.tensor([len(samples) * facts["steps"], facts["steps"]], dtype=torch.float64)
        tensors: Tensors = {}
        up: dict[str, Any] = {"n": len(client.train)}
        if after % s.tau_a == 0 or after == s.steps:
            tensors["weights"] = memory["weights"]
            up["points"] = float(memory["points"][0] / memory["points"][1])
            memory["points"] = torch.zeros(2, dtype=torch.float64)
        peers = {}
        asks = s.selection == "cfcl" and s.model == "local" and after % s.tau_p == 0 and after < s.steps
        if asks:
            # A neighbour can only choose by the receiver's model if it is sent that model.
            peers = {near: Message({"model": memory["weights"]}) for near in facts["near"]}
        return Update(Message(tensors, up), peers, memory, {**metrics, "pulled": float(len(pulled))})

    def loss(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """The local loss of a batch of two views."""
        s = self.settings
        if s.loss == "simclr":
            return contrastive(z_a, z_b, s.tau)
        if s.loss == "ssd":
            return align_loss(z_a, z_b) + (uniform_loss(z_a) + uniform_loss(z_b)) / 2
        # The batch is in random order: the next sample is any other one.
        return triplet_loss(z_a, z_b, z_a.roll(1, 0), s.margin)

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average after tau_a steps (eq. 5), weighted by the mean number of points held; say what is next."""
        s, facts = self.settings, dict(server.facts)
        vectors, points = [], []
        for update in updates:
            if "weights" in update.message.tensors:
                vectors.append(update.message.tensors["weights"])
                points.append(float(update.message.facts["points"]))
        tensors = dict(server.tensors)
        facts["averaged"] = bool(vectors)
        if vectors:
            tensors["weights"] = mean_vector(vectors, [p / sum(points) for p in points])
            facts["averagings"] += 1
        if facts["next"] == "train":
            facts["step"] += self.stretch(facts["step"])
        exchanging = s.selection != "none" and bool(facts["live"])
        facts["next"] = plan(facts["step"], s.steps, s.tau_p, facts["next"] == "pull", exchanging)
        return server.next(tensors, facts, finished=facts["next"] == "end")

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to unit embeddings (n, e)."""
        network = self.network()
        Vectors(network).load(network, server.tensors["weights"])
        return embed_with(network.eval(), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Embeddings; there are no clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """After an averaging: a linear probe of some samples. Always: steps, and how evenly labels are spread.

        `label_variance` is the variance over devices of the share of each label among the points a device trains on,
        mean over labels.
        """
        metrics = {"step": float(server.facts["step"])}
        data = evaluation.data
        if data.train_y is not None:
            shares = []
            for client in clients:
                pulled = client.memory.get("pulled", torch.zeros(0, dtype=torch.int64))
                y = torch.cat((client.train.y().cpu(), data.train_y.cpu()[pulled]))
                shares.append(torch.bincount(y, minlength=data.spec.classes or 0).double() / len(y))
            metrics["label_variance"] = float(torch.stack(shares).var(0, correction=0).mean())
        embed = self.embedder(server)
        if evaluation.final:
            metrics |= evaluate_features(embed, evaluation, self.context.clusters, self.recipe())
        elif server.facts["averaged"] and server.facts["step"] and data.test_y is not None:
            generator = evaluation.streams.torch("probe")
            learn = torch.randperm(len(evaluation.train), generator=generator)[:PROBED].to(data.device)
            judged = torch.randperm(len(data.test_x), generator=generator)[:PROBED].to(data.device)
            h = torch.cat([embed(evaluation.train.x(part)) for part in learn.split(evaluation.batch)])
            test = torch.cat([embed(data.test_x[part].float().div(255)) for part in judged.split(evaluation.batch)])
            metrics["probe"] = probe_accuracy(
                h, evaluation.train.y(learn), test, data.test_y[judged], generator, epochs=100
            )
        return metrics
