"""CF-CL: contrastive learning with smart device-to-device exchange.

Devices on a graph train an embedding by local steps, averaged by the server now and then. Once each sends its
neighbours a small reserve of its data; after that, a neighbour chooses by the reserve what would help the receiver
most, and sends it.

The order is that of algorithm 1: push, pull, train, average; the server's state says which is next. Apart from the
equations: the plan (state.py), links that fail (links.py), consent (consent.py), a device's buffers (memory.py).
Where this departs from the paper: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.augment import Recipe, augment
from shoal.data.view import Samples
from shoal.methods.averaging.robust import aggregated_vectors
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfcl.batches import Negatives, batch_inputs, batch_positions, selected
from shoal.methods.cfcl.consent import consented
from shoal.methods.cfcl.declared import DeclaredExchange
from shoal.methods.cfcl.embeddings import Embed, Embedded, embed_by_each_model, embed_by_one_model
from shoal.methods.cfcl.links import build_graph, check_failed, live_links, live_neighbours
from shoal.methods.cfcl.losses import local_loss
from shoal.methods.cfcl.memory import NOBODY, at_hand, label_counts, memory_now, package, purge, reserves
from shoal.methods.cfcl.selection import draw, draw_uniformly, importance, reserve
from shoal.methods.cfcl.settings import CFCLSettings
from shoal.methods.cfcl.state import CFCLState, Instruction, Plan
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method, RunHistory, Server, Update
from shoal.methods.contract.context import LocalSettings, MethodError, ModelSettings
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.scores.evaluation import embed_with, evaluate_features, features_only, quick_probe
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import as_input, seeded, view_recipe
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.optimiser_state import OPTIMISER
from shoal.models.encoders import build_encoder

if TYPE_CHECKING:
    from pandas import DataFrame

PROBED = 5000
"""Before the end of a run the linear probe is trained on, and tested on, at most this many samples each."""


class CFCL(DeclaredExchange):
    """CF-CL as a method: server state is the last average, `weights` (p,), and `CFCLState`."""

    name = "cfcl"
    proximal = False  # between averagings steps begin from the device's own model
    exchange_metric = "selecting"
    Settings = CFCLSettings
    settings: CFCLSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    model_defaults = ModelSettings("pooled-conv")
    finds_clusters = False
    judges_features = True
    shared_in_evaluation = "features"

    def __init__(self, settings: CFCLSettings, context: Any) -> None:
        super().__init__(settings, context)
        self.loss = local_loss(settings.loss, settings.margin, settings.tau)
        if settings.negatives != "batch" and settings.loss != "triplet":
            raise MethodError(
                f"method.negatives: {settings.negatives} is for the triplet loss, and method.loss is {settings.loss}: "
                "set method.negatives=batch"
            )
        check_failed(settings.failed)
        self.plan = Plan(settings.selection, settings.steps, settings.tau_a, settings.tau_p)

    @property
    def needs_clusters(self) -> bool:
        """Whether the loss has a head for clusters: only FedCC's has."""
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
        edges = build_graph(count, s.edges, s.degree, federation.streams.numpy("graph"))
        vectors = Vectors(network := self.network())
        state = CFCLState(0, self.plan.first(bool(edges)), tuple(range(count)), 0, count, edges)
        return Server({"weights": vectors.flatten(network)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """What to do, and with which neighbours; the last average, to a device that has not had it yet."""
        state = CFCLState.from_server(server)
        near = live_neighbours(state, self.settings.failed, client)
        steps = self.plan.stretch(state.step) if state.next == "train" else None
        told = Instruction(state.step, state.next, state.averagings, near, steps)
        return Message({"weights": server.model["weights"]} if client in state.behind else {}, told.facts())

    # --- devices --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Push reserves, send what neighbours pull, or train: one step of algorithm 1."""
        following = Instruction.from_message(message).next
        if following == "train":
            return super().client_update(message, client)
        act = {"push": self.push, "pull": self.pull}[following]
        return act(message, client, memory_now(message, client))

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Several clients' steps in one computation; pushes and pulls client after client."""
        if all(Instruction.from_message(message).next == "train" for message, _ in cohort):
            return super().cohort_update(cohort)
        return Method.cohort_update(self, cohort)

    def push(self, message: Message, client: Client, memory: Tensors) -> Update:
        """A reserve for each neighbour (eq. 6), once; algorithm 1, lines 3 to 5."""
        s = self.settings
        x = self.embedding_of(memory["global"])(client.train, None)
        peers = {}
        for near in Instruction.from_message(message).near:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {near}")
            chosen = reserve(x, s.reserve, rng, s.reserve_kind)
            sent = self.share(client, memory, "reserve", chosen, rng)
            if len(sent.samples["reserve"]):
                peers[near] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {self.exchange_metric: 1.0})

    def pull(self, message: Message, client: Client, memory: Tensors) -> Update:
        """What the device, as transmitter, sends each neighbour that pulls (algorithm 2), within its consent."""
        s, instruction = self.settings, Instruction.from_message(message)
        if s.buffer == "purge":
            purge(memory)
        # Candidates spare embeddings (eq. 7), which a uniform pull does not need.
        positions, embedded = torch.arange(len(client.train)), dict[int, Embedded]()
        if s.selection == "cfcl":
            positions = self.candidates(client, instruction.averagings)
            embedded = self.embed(client, memory, positions, instruction.near)
        heat = s.heat_first + (s.heat_last - s.heat_first) * instruction.step / s.steps
        peers = {}
        for near in instruction.near:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"pull {near}")
            if s.selection == "uniform":
                chosen = draw_uniformly(len(positions), s.budget, rng)
            else:
                p = importance(*embedded[near], clusters=s.clusters, heat=heat, margin=s.margin, kind=s.macro, rng=rng)
                chosen = draw(p, s.budget, rng)
            sent = self.share(client, memory, "pulled", positions[chosen], rng)
            if len(sent.samples["pulled"]):
                peers[near] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {self.exchange_metric: 1.0})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Local steps on own and pulled samples (eq. 4), from where weights and optimiser were."""
        memory = memory_now(message, client)
        pulled = memory.get("pulled", NOBODY)
        samples = at_hand(client.train, pulled)
        vectors = Vectors(network := self.network())
        vectors.load(network, memory["weights"])
        few = self.settings.negatives == "pulled" and len(pulled) < 2
        negatives: Negatives = "batch" if few else self.settings.negatives
        generator = client.streams.torch("views", samples.index.device)
        inputs = batch_inputs(self.recipe(), generator, self.loss.raw_anchor)

        def finish(taken: TakenSteps) -> Update:
            kept = {name: t for name, t in memory.items() if not name.startswith(OPTIMISER)} | taken.optimiser
            return self.trained(message, client, kept | {"weights": vectors.flatten(network)}, taken.metrics)

        size, count = self.context.local.batch, message.facts["steps"]
        rows = batch_positions(samples, len(pulled), size, count, client.streams, negatives)
        return LocalSteps(
            client,
            network.train(),
            rows,
            selected(samples),
            inputs,
            finish,
            optimiser=memory,
            alike=negatives,
            generators=(generator,),
        )

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
        points = memory.get("points", torch.zeros(2, dtype=torch.float64)).cpu()
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

    # --- what push and pull are made of ----------------------------------------------------------------------------

    def candidates(self, client: Client, averagings: int) -> Tensor:
        """Positions of the samples that a pull considers (eq. 7), int64, ascending; drawn anew after each average."""
        rng = Streams(self.context.seed, averagings, client.id).numpy("candidates")
        count = min(self.settings.candidates, len(client.train))
        return torch.from_numpy(np.sort(rng.choice(len(client.train), count, replace=False)))

    def embed(self, client: Client, memory: Tensors, positions: Tensor, near: Iterable[int]) -> dict[int, Embedded]:
        """For each neighbour the embeddings that importance needs, by the global or by the neighbour's own model."""
        candidates = client.train.take(positions.to(client.train.index.device))
        held = reserves(client.train, memory, near)
        generator = client.streams.torch("anchors", self.context.device)
        if self.settings.model == "global":
            return embed_by_one_model(self.embedding_of(memory["global"]), candidates, held, generator)

        def model_of(near: int) -> Embed:
            return self.embedding_of(memory.get(f"model/{near}", memory["global"]))

        return embed_by_each_model(model_of, candidates, held, generator)

    def embedding_of(self, vector: Tensor) -> Embed:
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

    def share(self, client: Client, memory: Tensors, kind: str, positions: Tensor, rng: np.random.Generator) -> Message:
        """Samples on their way to a neighbour, cut to what the device consents to."""
        limit = dict(self.settings.consent).get(client.id)
        return package(client.train, kind, consented(positions, limit, memory, rng), client.streams.round)

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average after tau_a steps (eq. 5), weighted by the mean number of points held; then say what is next."""
        state = CFCLState.from_server(server)
        model = dict(server.model)
        vectors, points, here = [], [], set()
        for update in updates:
            here.add(update.client)
            if "weights" in update.message.tensors:
                vectors.append(update.message.tensors["weights"])
                points.append(float(update.message.facts["points"]))
        if vectors:
            shares = [p / sum(points) for p in points]
            model["weights"] = aggregated_vectors(vectors, shares, self.context.aggregation, model["weights"])
        state = state.averaged() if vectors else state.told(here)
        step = state.step + (self.plan.stretch(state.step) if state.next == "train" else 0)
        linked = bool(live_links(state.edges, self.settings.failed, step))
        state = replace(state, step=step, next=self.plan.following(step, state.next, linked))
        return server.next(model, facts=state.facts(), finished=state.next == "end")

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics, where the encoder has it, on the devices' own data."""
        vectors = Vectors(network := self.network())
        vectors.load(network, server.model["weights"])
        found = recalibrate(network, clients, evaluation, self.context)
        return {"weights": vectors.flatten(network)} if found else {}

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to unit embeddings (n, e)."""
        network = self.network()
        Vectors(network).load(network, server.model["weights"])
        network.eval()
        return embed_with(lambda x: self.loss.embed(network, x), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Embeddings; there are no clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """After an averaging a linear probe; after every round the local steps, and how evenly labels are spread.

        `label_variance` is the variance over devices of the number of points of a label that a device has, averaged
        over labels; `label_share_variance` is the same for shares of its points. `redundancy` is the share of the
        points it has from others whose label is among its own. Points pulled in this round count.
        `probe` is trained and tested on at most `PROBED` samples each, the same ones after every averaging;
        `probe_full`, at the end of the run, uses all samples.
        """
        state = CFCLState.from_server(server)
        metrics = {"step": float(state.step)}
        data = evaluation.data
        if data.train_y is not None:
            counts = label_counts(clients, data.spec.classes or 0)
            table = counts.own + counts.pulled
            metrics["label_variance"] = float(table.var(0, correction=0).mean())
            metrics["label_share_variance"] = float((table / table.sum(1, keepdim=True)).var(0, correction=0).mean())
            if counts.redundancy is not None:
                metrics["redundancy"] = counts.redundancy
        embed = self.embedder(server)
        if evaluation.final:
            metrics |= evaluate_features(embed, evaluation, self.context.known_clusters, self.recipe())
            if "probe" in metrics:
                metrics["probe_full"] = metrics.pop("probe")
        if state.just_averaged and state.step and data.test_y is not None and len(data.test_x):
            metrics |= quick_probe(embed, evaluation, PROBED, sgd_steps=self.settings.probe_steps)
        return metrics

    def tables(self, history: RunHistory) -> dict[str, DataFrame]:
        """`exchange`: who was sent whose samples."""
        from shoal.methods.cfcl.exchange import exchange_table  # here: training does without pandas

        return {"exchange": exchange_table(history.clients)}
