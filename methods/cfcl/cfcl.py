"""CF-CL: contrastive learning with smart device-to-device exchange.

Devices on a graph train an embedding by local steps, averaged by the server now and then. Once each sends its
neighbours a small reserve of its data; after that, a neighbour chooses by the reserve what would help the receiver
most, and sends it.

A round of the engine is a push, a pull, or a stretch of local steps with or without averaging: the server's facts say
which is next. Where this departs from the paper: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from core.setting import setting
from core.streams import Streams
from data.augment import Recipe, augment
from data.topology import check_edges, neighbours, random_geometric_graph
from data.view import Samples
from methods.base import (
    Client,
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
from methods.cfcl.batches import batch_inputs, batch_positions
from methods.cfcl.links import check_failed, live_links
from methods.cfcl.losses import local_loss
from methods.cfcl.memory import NOBODY, at_hand, consented, label_counts, memory_now, only, package
from methods.cfcl.selection import Macro, draw, importance, reserve
from methods.scores.evaluation import embed_with, evaluate_features, features_only, quick_probe
from methods.training.local import as_input, seeded, view_recipe
from methods.training.model_stack import Batch, LocalModel, StepResult
from methods.training.optimiser_state import OPTIMISER
from methods.training.steps import GradientMethod, LocalSteps, TakenSteps
from methods.training.vectors import Vectors, mean_vector
from models.encoders import build_encoder

PROBED = 5000
"""Between the ends the probe learns from, and is judged on, at most so many samples."""


@dataclass(frozen=True)
class CFCLSettings:
    """Hyper-parameters of CF-CL."""

    selection: Literal["cfcl", "uniform", "none"] = setting("cfcl", "what is pulled: by importance, uniformly, nothing")
    steps: int = setting(2000, "local steps in all", ge=1)
    tau_a: int = setting(25, "steps between two averagings", ge=1)
    tau_p: int = setting(25, "steps between two pulls", ge=1)
    loss: Literal["triplet", "simclr", "ssd", "fedcc"] = setting(
        "triplet", "local loss: triplet; FedSimCLR's NT-Xent; SSD's alignment and uniformity; FedCC's with both heads"
    )
    margin: float = setting(1.0, "of the triplet loss, also where samples are selected", ge=0)
    negatives: Literal["batch", "pulled"] = setting(
        "batch", "of triplets: the next sample of the batch, or one that was pulled, where two were"
    )
    tau: float = setting(0.5, "temperature of simclr, and of fedcc's instance loss", gt=0)
    reserve: int = setting(20, "samples of a reserve", ge=0)
    reserve_kind: Literal["kmeans", "random"] = setting("kmeans", "how a reserve is chosen")
    candidates: int = setting(200, "samples a transmitter considers", ge=1)
    budget: int = setting(20, "samples pulled over a link", ge=0)
    clusters: int = setting(4, "clusters of macro importance", ge=1)
    macro: Macro = setting("share", "of a cluster: n_tx / (n_tx + n_res), n_tx times that, or n_tx / n_res as printed")
    heat_first: float = setting(1.0, "lambda of micro importance at the start", ge=0)
    heat_last: float = setting(5.0, "lambda at the end; linear in between", ge=0)
    model: Literal["global", "local"] = setting("global", "whose model selects: the last average, or the receiver's")
    buffer: Literal["purge", "unlimited"] = setting("purge", "what was pulled before: dropped at a pull, or kept")
    degree: float = setting(4.0, "average degree of the random geometric graph", gt=0)
    edges: tuple[tuple[int, int], ...] = setting(
        (), "links instead of a random graph; a file name is read as edge list"
    )
    failed: tuple[tuple[int, ...], ...] = setting(
        (), "links that carry nothing: (i, j), (i, j, from local step), or (i, j, from, to) without the last"
    )
    consent: tuple[tuple[int, int], ...] = setting((), "(device, n): shares at most n samples in all, 0 none")


def plan(step: int, steps: int, tau_p: int, pulled: bool, exchanging: bool) -> str:
    """What comes next at a step: push, pull, train or end."""
    if step >= steps:
        return "end"
    return "pull" if exchanging and step % tau_p == 0 and not pulled else "train"


class CFCL(GradientMethod):
    """CF-CL as a method. Server facts: `step`, `next` (push, pull, train), graph; tensors: the last average."""

    name = "cfcl"
    Settings = CFCLSettings
    settings: CFCLSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    model_defaults = ModelSettings("pooled-conv")
    finds_clusters = False
    judges_features = True

    def __init__(self, settings: CFCLSettings, context: Any) -> None:
        super().__init__(settings, context)
        self.loss = local_loss(settings.loss, settings.margin, settings.tau)
        if settings.negatives == "pulled" and settings.loss != "triplet":
            raise MethodError(f"method.negatives: pulled is for the triplet loss, and method.loss is {settings.loss}")
        check_failed(settings.failed)

    @property
    def needs_clusters(self) -> bool:
        """Only FedCC's loss has a head for clusters."""
        return self.settings.loss == "fedcc"

    def network(self) -> nn.Module:
        """A fresh network with the run's initial weights."""
        c, encoder = self.context, self.context.model.encoder
        clusters = c.clusters if self.needs_clusters else 0
        return seeded(lambda: self.loss.build(build_encoder(encoder, c.spec.shape), clusters), c, drawn=self.drawn)

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
        vectors = Vectors(network := self.network())
        facts = {
            "step": 0,
            "next": self.first(bool(edges)),
            "behind": list(range(count)),
            "averagings": 0,
            "clients": count,
            "edges": [list(edge) for edge in edges],
        }
        return Server({"weights": vectors.flatten(network)}, facts)

    def first(self, linked: bool) -> str:
        """What a run begins with: reserves are of use to importance alone, a uniform pull needs none."""
        if not linked or self.settings.selection == "none":
            return "train"
        return "push" if self.settings.selection == "cfcl" else "pull"

    def broadcast(self, server: Server, client: int) -> Message:
        """What to do; the average, to whom has not had it yet."""
        f = server.facts
        facts: dict[str, Any] = {k: f[k] for k in ("step", "next", "averagings")}
        facts["near"] = neighbours(f["clients"], live_links(f["edges"], self.settings.failed, f["step"]))[client]
        if f["next"] == "train":
            facts["steps"] = self.stretch(f["step"])
        return Message({"weights": server.tensors["weights"]} if client in f["behind"] else {}, facts)

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
        if message.facts["next"] == "train":
            return super().client_update(message, client)
        act = {"push": self.push, "pull": self.pull}[message.facts["next"]]
        return act(message, client, memory_now(message, client))

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Several clients' steps in one computation; pushes and pulls client after client."""
        if all(message.facts["next"] == "train" for message, _ in cohort):
            return super().cohort_update(cohort)
        return Method.cohort_update(self, cohort)

    def share(self, client: Client, memory: Tensors, kind: str, positions: Tensor, rng: np.random.Generator) -> Message:
        """Samples on their way to a neighbour, cut to what the device consents to."""
        limit = dict(self.settings.consent).get(client.id)
        return package(client.train, kind, consented(positions, limit, memory, rng), client.streams.round)

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
                x = samples.x(positions)
                x = as_input(x if generator is None else augment(x, recipe, generator))
                with self.context.autocast():
                    parts.append(self.loss.embed(network, x).float().cpu())
            return torch.cat(parts)

        return embed

    def push(self, message: Message, client: Client, memory: Tensors) -> Update:
        """A reserve for each neighbour (eq. 6), once."""
        s = self.settings
        x = self.embedding_of(memory["global"])(client.train, None)
        peers = {}
        for near in message.facts["near"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {near}")
            sent = self.share(client, memory, "reserve", reserve(x, s.reserve, rng, s.reserve_kind), rng)
            if len(sent.samples["reserve"]):
                peers[near] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {"selecting": 1.0})

    def pull(self, message: Message, client: Client, memory: Tensors) -> Update:
        """What each neighbour is sent (eq. 7 to 12)."""
        s, facts = self.settings, message.facts
        # Drawn once per averaging, and the same until the next.
        fresh = Streams(self.context.seed, facts["averagings"], client.id).numpy("candidates")
        count = min(s.candidates, len(client.train))
        positions = torch.from_numpy(np.sort(fresh.choice(len(client.train), count, replace=False)))
        candidates = client.train.take(positions.to(client.train.index.device))
        heat = s.heat_first + (s.heat_last - s.heat_first) * facts["step"] / s.steps
        if s.buffer == "purge":
            memory["pulled"] = NOBODY.clone()
        held = {near: only(client.train, memory.get(f"reserve/{near}", NOBODY)) for near in facts["near"]}
        mine: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        if s.selection == "cfcl":
            mine = self.embeddings(client, memory, candidates, held)
        peers = {}
        for near in facts["near"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"pull {near}")
            if s.selection == "uniform":
                chosen = torch.from_numpy(np.sort(rng.choice(count, min(s.budget, count), replace=False)))
            else:
                p = importance(*mine[near], clusters=s.clusters, heat=heat, margin=s.margin, kind=s.macro, rng=rng)
                chosen = draw(p, s.budget, rng)
            sent = self.share(client, memory, "pulled", positions[chosen], rng)
            if len(sent.samples["pulled"]):
                peers[near] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {"selecting": 1.0})

    def embeddings(
        self, client: Client, memory: Tensors, candidates: Samples, held: dict[int, Samples]
    ) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
        """For each neighbour: embeddings of the candidates, of its reserve, and of augmentations of its reserve.

        By one model for all neighbours, in one pass; or by the model that each of them sent.
        """
        generator = client.streams.torch("anchors", self.context.device)
        if self.settings.model == "local":
            found = {}
            for near, others in held.items():
                embed = self.embedding_of(memory.get(f"model/{near}", memory["global"]))
                x = embed(candidates, None)
                found[near] = (x, embed(others, None), embed(others, generator)) if len(others) else (x, x[:0], x[:0])
            return found
        embed = self.embedding_of(memory["global"])
        x = embed(candidates, None)
        if not any(map(len, held.values())):
            return dict.fromkeys(held, (x, x[:0], x[:0]))
        every = replace(
            candidates,
            index=torch.cat([others.index for others in held.values()]),
            transformation=torch.cat([others.transformation for others in held.values()]),
        )
        sizes = [len(others) for others in held.values()]
        anchors, positives = embed(every, None).split(sizes), embed(every, generator).split(sizes)
        return {near: (x, a, b) for near, a, b in zip(held, anchors, positives, strict=True)}

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Local steps on own and pulled samples (eq. 4), from where weights and optimiser were."""
        memory = memory_now(message, client)
        pulled = memory.get("pulled", NOBODY)
        samples = at_hand(client.train, pulled)
        vectors = Vectors(network := self.network())
        vectors.load(network, memory["weights"])
        against_pulled = self.settings.negatives == "pulled" and len(pulled) > 1
        inputs = batch_inputs(samples, len(pulled), self.recipe(), client.streams, self.loss.raw_anchor, against_pulled)

        def finish(taken: TakenSteps) -> Update:
            kept = {name: t for name, t in memory.items() if not name.startswith(OPTIMISER)} | taken.optimiser
            return self.trained(message, client, kept | {"weights": vectors.flatten(network)}, taken.metrics)

        rows = batch_positions(len(samples), self.context.local.batch, message.facts["steps"], client.streams)
        return LocalSteps(client, network.train(), rows, inputs, finish, optimiser=memory, alike=against_pulled)

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """The local loss of first views, then second views, and of negatives where they were pulled."""
        with self.context.autocast():
            return self.loss(model, *batch), {}

    def optimiser(self, parameters: Iterable[nn.Parameter], round: int) -> torch.optim.Optimizer:
        """At the learning rate of round 1: a round of the engine is a stretch of steps here."""
        return super().optimiser(parameters, 1)

    def trained(self, message: Message, client: Client, memory: Tensors, metrics: dict[str, float]) -> Update:
        """The model goes up where an averaging follows, and to neighbours that choose by it."""
        s, facts = self.settings, message.facts
        pulled = memory.get("pulled", NOBODY)
        after = facts["step"] + facts["steps"]
        points = memory.get("points", torch.zeros(2, dtype=torch.float64))
        held = len(client.train) + len(pulled)
        memory["points"] = points + torch.tensor([held * facts["steps"], facts["steps"]], dtype=torch.float64)
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

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average after tau_a steps (eq. 5), weighted by the mean number of points held; say what is next."""
        s, facts = self.settings, dict(server.facts)
        vectors, points, here = [], [], set()
        for update in updates:
            here.add(update.client)
            if "weights" in update.message.tensors:
                vectors.append(update.message.tensors["weights"])
                points.append(float(update.message.facts["points"]))
        tensors = dict(server.tensors)
        # Who was left out of a round gets the average in the next one.
        facts["behind"] = list(range(facts["clients"])) if vectors else [c for c in facts["behind"] if c not in here]
        if vectors:
            tensors["weights"] = mean_vector(vectors, [p / sum(points) for p in points])
            facts["averagings"] += 1
        if facts["next"] == "train":
            facts["step"] += self.stretch(facts["step"])
        exchanging = s.selection != "none" and bool(live_links(facts["edges"], s.failed, facts["step"]))
        facts["next"] = plan(facts["step"], s.steps, s.tau_p, facts["next"] == "pull", exchanging)
        return server.next(tensors, facts, finished=facts["next"] == "end")

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to unit embeddings (n, e)."""
        network = self.network()
        Vectors(network).load(network, server.tensors["weights"])
        network.eval()
        return embed_with(lambda x: self.loss.embed(network, x), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Embeddings; there are no clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """After an averaging: a linear probe. Always: steps, and how evenly labels are spread.

        `label_variance` is the variance over devices of how many points of a label a device has, mean over labels;
        `label_share_variance` the same of shares of its points. What was pulled in this round counts.
        `probe` learns from, and is judged on, `PROBED` samples, the same way after every averaging; at the end
        `probe_full` is the probe of all samples.
        """
        metrics = {"step": float(server.facts["step"])}
        data = evaluation.data
        if data.train_y is not None:
            table = label_counts(clients, data.spec.classes or 0)
            metrics["label_variance"] = float(table.var(0, correction=0).mean())
            metrics["label_share_variance"] = float((table / table.sum(1, keepdim=True)).var(0, correction=0).mean())
        embed = self.embedder(server)
        if evaluation.final:
            metrics |= evaluate_features(embed, evaluation, self.context.known_clusters, self.recipe())
            if "probe" in metrics:
                metrics["probe_full"] = metrics.pop("probe")
        averaged = len(server.facts["behind"]) == server.facts["clients"]
        if averaged and server.facts["step"] and data.test_y is not None and len(data.test_x):
            metrics["probe"] = quick_probe(embed, evaluation, PROBED)
        return metrics
