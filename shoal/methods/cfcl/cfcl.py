"""CF-CL: contrastive learning with smart device-to-device exchange.

Devices on a graph train an embedding by local steps, averaged by the server now and then. Once each sends its
neighbours a small reserve of its data; after that, a neighbour chooses by the reserve what would help the receiver
most, and sends it.

The order is that of algorithm 1: push, pull, train, average; the server's state says which is next. The plan stands in
settings.py, the graph in state.py, a device's buffers in memory.py.

docs/methods.md lists where this departs from the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.views.augment import AnyRecipe, Recipe, augment
from shoal.data.views.view import Samples
from shoal.methods.averaging.robust import aggregated_vectors
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfcl.memory import (
    NO_SAMPLES,
    package,
    pulled_samples,
    reserves,
    updated_memory,
    with_pulled,
)
from shoal.methods.cfcl.selection import (
    Embed,
    Embeddings,
    draw,
    draw_uniformly,
    importance,
    macro_probability,
    reserve,
    triplet_loss,
)
from shoal.methods.cfcl.settings import CFCLSettings
from shoal.methods.cfcl.state import CFCLState, build_graph
from shoal.methods.contract.base import (
    SELECTING,
    Client,
    Clients,
    Evaluation,
    Federation,
    Server,
    Update,
)
from shoal.methods.contract.context import LocalSettings, MethodError, ModelSettings
from shoal.methods.contract.declared import FactForm, MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.evaluation import embed_with, evaluate_features, features_only, quick_probe
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import as_input, seeded, view_recipe
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.optimiser_state import OPTIMISER
from shoal.methods.training.steps import GradientMethod
from shoal.models.heads import UnitEmbedding

PROBE_SAMPLES = 5000
"""Before the end of a run the linear probe is trained on, and tested on, at most this many samples each."""


class CFCL(GradientMethod):
    """CF-CL as a method: server state is the last average, `weights` (p,), and `CFCLState`."""

    name = "cfcl"
    title = "CF-CL"
    question = Question.FEATURES
    about = "Devices exchange a few samples with their neighbours, and contrast with them."
    kinds = ("image", "vector", "series")
    encoder = "trained"
    local_options = ()  # between two averagings a device trains on from its own model
    Settings = CFCLSettings
    settings: CFCLSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    model_defaults = ModelSettings("pooled-conv")
    finds_clusters = False
    needs_clusters = False
    judges_features = True
    averages_parts = True
    of_the_server = ("step",)
    evaluation_reads_memory = False
    considered = 200
    """Number of samples that a sender considers for a pull by importance; a uniform pull considers all."""
    heat = (1.0, 5.0)
    """Selection temperature lambda of micro importance at the first and at the last step, linear between."""

    def network(self) -> nn.Module:
        """Return a fresh network with the run's initial weights."""
        return seeded(lambda: UnitEmbedding(self.new_encoder()), self.context, cache=self.network_cache)

    def recipe(self) -> AnyRecipe:
        """Return the recipe of views: of images a resized crop of at least half, flip, Gaussian blur."""
        return view_recipe(self.context, Recipe(crop=(0.5, 1.0), flip=0.5, blur=0.5))

    def init_server(self, federation: Federation) -> Server:
        """Return the initial weights and the graph.

        Raises:
            MethodError: partial participation.
            DataError: a graph that cannot be.
        """
        s = self.settings
        count = federation.clients
        if self.context.fraction < 1:
            raise MethodError("cfcl needs every device in every round: set participation.fraction=1")
        edges = build_graph(count, s.edges, s.degree, federation.streams.numpy("graph"))
        network = self.network()
        state = CFCLState(0, self.settings.first(bool(edges)), tuple(range(count)), 0, count, edges)
        return Server({"weights": Vectors(network).flatten(network)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the instruction of the round, with the last average for a device that has not been sent it yet."""
        state = CFCLState.from_server(server)
        facts = {name: server.facts[name] for name in ("step", "next", "averagings")}
        facts["neighbours"] = list(state.neighbours(client))
        if state.next == "train":
            facts["steps"] = self.settings.stretch(state.step)
        weights = {"weights": server.model["weights"]} if client in state.behind else {}
        return Message(weights, facts)

    # --- devices --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Push reserves, send what neighbours pull, or train: one step of algorithm 1."""
        if self.takes_steps(message):
            return super().client_update(message, client)
        act = {"push": self.push, "pull": self.pull}[message.facts["next"]]
        return act(message.facts, client, updated_memory(message, client))

    def takes_steps(self, message: Message) -> bool:
        """Return whether devices train; else they push or pull."""
        return bool(message.facts["next"] == "train")

    def push(self, facts: Mapping[str, Any], client: Client, memory: Tensors) -> Update:
        """Send each neighbour a reserve (eq. 6), once; algorithm 1, lines 3 to 5."""
        x = self.embedding_of(memory["global"])(client.train, None)
        peers = {}
        for neighbour in facts["neighbours"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {neighbour}")
            sent = package(client.train, "reserve", reserve(x, self.settings.reserve, rng), client.streams.round)
            if len(sent.samples["reserve"]):
                peers[neighbour] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {SELECTING: 1.0})

    def pull(self, facts: Mapping[str, Any], client: Client, memory: Tensors) -> Update:
        """Send each neighbour that pulls the samples chosen for it (algorithm 2)."""
        s = self.settings
        memory["pulled"] = NO_SAMPLES  # the paper's buffer holds the samples of one pull
        # A uniform pull needs no embeddings, so that it need not be limited to a few candidates (eq. 7).
        positions = torch.arange(len(client.train))
        embedded = dict[int, Embeddings]()
        if self.settings.by_importance:
            positions = self.candidates(client, facts["averagings"])
            embedded = self.embed(client, memory, positions, facts["neighbours"])
        first, last = self.heat
        heat = first + (last - first) * facts["step"] / s.steps
        peers = {}
        for neighbour in facts["neighbours"]:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"pull {neighbour}")
            if self.settings.by_importance:
                p = importance(*embedded[neighbour], clusters=s.clusters, heat=heat, macro=self.macro, rng=rng)
                chosen = draw(p, s.budget, rng)
            else:
                chosen = draw_uniformly(len(positions), s.budget, rng)
            sent = package(client.train, "pulled", positions[chosen], client.streams.round)
            if len(sent.samples["pulled"]):
                peers[neighbour] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {SELECTING: 1.0})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take local steps on own and pulled samples (eq. 4), from where the last ones left weights and optimiser."""
        memory = updated_memory(message, client)
        pulled = memory.get("pulled", NO_SAMPLES)
        samples = with_pulled(client.train, pulled)
        network = self.network()
        vectors = Vectors(network)
        vectors.load(network, memory["weights"])
        recipe = self.recipe()
        generator = client.streams.torch("views", samples.index.device)

        def finish(taken: TakenSteps) -> Update:
            others = {name: tensor for name, tensor in memory.items() if not name.startswith(OPTIMISER)}
            trained = others | taken.optimiser | {"weights": vectors.flatten(network)}
            return self.trained(message, client, trained, taken.metrics)

        def select(positions: Tensor) -> Batch:
            return (samples.raw(positions),)

        def inputs(batch: Batch) -> Batch:
            x = samples.data.computable(batch[0])
            return (as_input(torch.cat((x, augment(x, recipe, generator)))),)

        order = client.streams.torch("batches")
        size = self.context.local.batch
        # All are drawn before the first step, so that no step waits for a copy to the samples' device.
        drawn = [torch.randperm(len(samples), generator=order)[:size] for _ in range(message.facts["steps"])]
        rows = torch.stack(drawn).to(samples.index.device)
        return LocalSteps(
            client, network.train(), list(rows), select, inputs, finish, optimiser=memory, generators=(generator,)
        )

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the triplet loss (eq. 1) of samples, their augmentations, and the next of the batch as negatives."""
        with self.context.autocast():
            anchor, positive = model(*batch).chunk(2)
            return triplet_loss(anchor, positive, anchor.roll(1, 0)), {}

    def optimiser(self, parameters: Iterable[nn.Parameter], round: int) -> torch.optim.Optimizer:
        """Return an optimiser at the learning rate of round 1: a round of the engine is a stretch of steps here."""
        return super().optimiser(parameters, 1)

    def trained(self, message: Message, client: Client, memory: Tensors, metrics: dict[str, float]) -> Update:
        """Return the update after local steps: the model goes up where an averaging follows."""
        facts = message.facts
        pulled = memory.get("pulled", NO_SAMPLES)
        step = facts["step"] + facts["steps"]
        points = len(client.train) + len(pulled)
        # The sum over steps of the points held since the last averaging, and the number of these steps.
        counted = memory.get("points", torch.zeros(2, dtype=torch.float64)).cpu()
        counted = counted + torch.tensor([points * facts["steps"], facts["steps"]], dtype=torch.float64)
        tensors: Tensors = {}
        up: dict[str, Any] = {"n": len(client.train)}
        if self.settings.averages_at(step):
            tensors["weights"] = memory["weights"]
            up["points"] = float(counted[0] / counted[1])
            counted = torch.zeros(2, dtype=torch.float64)
        memory["points"] = counted
        return Update(Message(tensors, up), memory=memory, metrics={**metrics, "pulled": float(len(pulled))})

    # --- what push and pull are made of ----------------------------------------------------------------------------

    def candidates(self, client: Client, averagings: int) -> Tensor:
        """Return positions of the samples that a pull considers (eq. 7), int64, ascending; new after an average."""
        rng = Streams(self.context.seed, averagings, client.id).numpy("candidates")
        count = min(self.considered, len(client.train))
        return torch.from_numpy(np.sort(rng.choice(len(client.train), count, replace=False)))

    def macro(self, cluster_tx: Tensor, cluster_res: Tensor, clusters: int) -> Tensor:
        """Return the probability of each cluster (eq. 8, 9), see `macro_probability`."""
        return macro_probability(cluster_tx, cluster_res, clusters)

    def embed(
        self, client: Client, memory: Tensors, positions: Tensor, neighbours: Iterable[int]
    ) -> dict[int, Embeddings]:
        """Return for each neighbour the embeddings that importance needs, by the last global model."""
        candidates = client.train.take(positions.to(client.train.index.device))
        received = reserves(client.train, memory, neighbours)
        generator = client.streams.torch("anchors", self.context.device)
        embed = self.embedding_of(memory["global"])
        x = embed(candidates, None)
        if not any(map(len, received.values())):
            return dict.fromkeys(received, Embeddings(x, x[:0], x[:0]))
        # All reserves in one pass.
        every = pulled_samples(candidates, torch.cat([reserved.index for reserved in received.values()]))
        sizes = [len(reserved) for reserved in received.values()]
        parts = zip(received, embed(every, None).split(sizes), embed(every, generator).split(sizes), strict=True)
        return {neighbour: Embeddings(x, anchor, positive) for neighbour, anchor, positive in parts}

    def embedding_of(self, vector: Tensor) -> Embed:
        """Return a function from samples to embeddings (n, e) on the CPU; given a generator, of augmented samples."""
        network = self.network()
        Vectors(network).load(network, vector)
        network.eval()
        recipe = self.recipe()

        @torch.no_grad()
        def embed(samples: Samples, generator: torch.Generator | None = None) -> Tensor:
            parts = []
            for positions in torch.arange(len(samples), device=samples.index.device).split(512):
                x = samples.x(positions)
                if generator is not None:
                    x = augment(x, recipe, generator)
                with self.context.autocast():
                    parts.append(network(as_input(x)).float().cpu())
            return torch.cat(parts)

        return embed

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the fact `n` and, where an averaging follows, of the weights and the mean points held."""
        state = CFCLState.from_server(server)
        facts = {"n": exactly(samples)}
        if state.next != "train" or not self.settings.averages_at(self.settings.step_after(state)):
            return MessageForm({}, facts)
        degree = sum(client in edge for edge in state.edges)
        facts["points"] = FactForm(minimum=1, maximum=samples + degree * self.settings.budget)
        weights = server.model["weights"]
        return MessageForm({"weights": TensorForm(tuple(weights.shape), start=weights)}, facts)

    def declared_to_peer(self, server: Server, client: int, peer: int) -> MessageForm | None:
        """Return the form of a reserve or of pulled samples."""
        state = CFCLState.from_server(server)
        indices = self.context.spec.train
        if peer not in state.neighbours(client):
            return None
        if state.next == "push":
            return MessageForm(samples={"reserve": self.settings.reserve}, indices=indices)
        if state.next == "pull":
            facts = {"round": exactly(server.round + 1)}
            return MessageForm(facts=facts, samples={"pulled": self.settings.budget}, indices=indices)
        return None

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average after tau_a steps (eq. 5), weighted by the mean number of points held; then set the next action."""
        state = CFCLState.from_server(server)
        model = dict(server.model)
        vectors: list[Tensor] = []
        points: list[float] = []
        participants: set[int] = set()
        for update in updates:
            participants.add(update.client)
            if "weights" in update.message.tensors:
                vectors.append(update.message.tensors["weights"])
                points.append(float(update.message.facts["points"]))
        step = self.settings.step_after(state)
        if vectors:
            shares = [p / sum(points) for p in points]
            model["weights"] = aggregated_vectors(vectors, shares, self.context.aggregation, model["weights"])
            after = state.with_average()
        else:
            after = state.without_average(participants)
        after = replace(after, step=step, next=self.settings.next_action(step, state.next, bool(state.edges)))
        return server.next(model, facts=after.facts(), finished=after.next == "end")

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Return weights with BatchNorm's statistics, where the encoder has it, on the devices' own data."""
        network = self.network()
        vectors = Vectors(network)
        vectors.load(network, server.model["weights"])
        statistics = recalibrate(network, clients, evaluation, self.context)
        if not statistics:
            return {}
        return {"weights": vectors.flatten(network)}

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to unit embeddings (n, e)."""
        network = self.network()
        Vectors(network).load(network, server.model["weights"])
        network.eval()
        return embed_with(network, self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from samples to embeddings, without clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return a linear probe after an averaging, and the metrics of the embeddings at the end.

        `probe` is trained and tested on at most `PROBE_SAMPLES` samples each, the same ones after every averaging;
        `probe_full`, at the end of the run, uses all samples.
        """
        state = CFCLState.from_server(server)
        metrics = {"step": float(state.step)}
        data = evaluation.data
        embed = self.embedder(server)
        if evaluation.final:
            metrics |= evaluate_features(embed, evaluation, self.context.known_clusters, self.recipe())
            if "probe" in metrics:
                metrics["probe_full"] = metrics.pop("probe")
        if state.just_averaged and state.step and data.test_y is not None and len(data.test_x):
            metrics |= quick_probe(embed, evaluation, PROBE_SAMPLES)
        return metrics
