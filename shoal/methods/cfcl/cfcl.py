"""CF-CL: contrastive learning with smart device-to-device exchange.

Devices on a graph train an embedding by local steps, averaged by the server now and then. Once each sends its
neighbours a small reserve of its data; after that, a neighbour chooses by the reserve what would help the receiver
most, and sends it.

The order is that of algorithm 1: push, pull, train, average; the server's state says which is next. The plan stands in
state.py, the graph in links.py, consent in consent.py, a device's buffers in memory.py.

docs/methods.md lists where this departs from the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.streams import Streams
from shoal.data.views.augment import AnyRecipe, Recipe, augment
from shoal.data.views.view import Samples
from shoal.methods.averaging.robust import aggregated_vectors
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfcl.batches import Negatives, batch_inputs, batch_positions, select_from
from shoal.methods.cfcl.consent import consented
from shoal.methods.cfcl.declared import DeclaredExchange
from shoal.methods.cfcl.embeddings import Embed, Embedded, embed_by_each_model, embed_by_one_model
from shoal.methods.cfcl.links import build_graph, device_neighbours
from shoal.methods.cfcl.losses import local_loss
from shoal.methods.cfcl.memory import (
    NO_SAMPLES,
    drop_pulled,
    label_counts,
    package,
    reserves,
    updated_memory,
    with_pulled,
)
from shoal.methods.cfcl.selection import draw, draw_uniformly, importance, macro_probability, reserve
from shoal.methods.cfcl.settings import CFCLSettings
from shoal.methods.cfcl.state import CFCLState, Instruction, Plan
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method, RunHistory, Server, Update
from shoal.methods.contract.context import LocalSettings, MethodError, ModelSettings
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.evaluation import embed_with, evaluate_features, features_only, quick_probe
from shoal.methods.scores.recalibration import recalibrate
from shoal.methods.training.local import as_input, seeded, view_recipe
from shoal.methods.training.local_steps import LocalSteps, TakenSteps
from shoal.methods.training.model_stack import Batch, LocalModel, StepResult
from shoal.methods.training.optimiser_state import OPTIMISER

if TYPE_CHECKING:
    from pandas import DataFrame

PROBE_SAMPLES = 5000
"""Before the end of a run the linear probe is trained on, and tested on, at most this many samples each."""


class CFCL(DeclaredExchange):
    """CF-CL as a method: server state is the last average, `weights` (p,), and `CFCLState`."""

    name = "cfcl"
    title = "CF-CL"
    question = Question.FEATURES
    about = "Devices exchange a few samples with their neighbours, and contrast with them."
    kinds = ("image", "vector", "series")
    builds_encoder = True
    proximal = False  # between two averagings a device trains on from its own model
    exchange_metric = "selecting"
    Settings = CFCLSettings
    settings: CFCLSettings
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    starts_pretrained = True
    model_defaults = ModelSettings("pooled-conv")
    finds_clusters = False
    judges_features = True
    shared_in_evaluation = "features"
    considered = 200
    """Number of samples that a sender considers for a pull by importance; a uniform pull considers all."""
    heat = (1.0, 5.0)
    """Selection temperature lambda of micro importance at the first and at the last step, linear between."""

    def __init__(self, settings: CFCLSettings, context: Any) -> None:
        super().__init__(settings, context)
        self.loss = local_loss(settings.loss)
        if settings.negatives != "batch" and settings.loss != "triplet":
            raise MethodError(
                f"method.negatives: {settings.negatives} is for the triplet loss, and method.loss is {settings.loss}: "
                "set method.negatives=batch"
            )
        self.plan = Plan(settings.selection, settings.steps, settings.tau_a, settings.tau_p)

    @property
    def needs_clusters(self) -> bool:
        """Whether the loss has a head for clusters: only FedCC's has."""
        return self.settings.loss == "fedcc"

    def network(self) -> nn.Module:
        """Return a fresh network with the run's initial weights."""
        c = self.context
        clusters = c.clusters if self.needs_clusters else 0

        def build() -> nn.Module:
            return self.loss.build(self.new_encoder(), clusters)

        return seeded(build, c, cache=self.network_cache)

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
        state = CFCLState(0, self.plan.first(bool(edges)), tuple(range(count)), 0, count, edges)
        return Server({"weights": Vectors(network).flatten(network)}, facts=state.facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Return the instruction of the round, with the last average for a device that has not been sent it yet."""
        state = CFCLState.from_server(server)
        steps = self.plan.stretch(state.step) if state.next == "train" else None
        neighbours = device_neighbours(state, client)
        instruction = Instruction(state.step, state.next, state.averagings, neighbours, steps)
        weights = {"weights": server.model["weights"]} if client in state.behind else {}
        return Message(weights, instruction.facts())

    # --- devices --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Push reserves, send what neighbours pull, or train: one step of algorithm 1."""
        instruction = Instruction.from_message(message)
        if instruction.next == "train":
            return super().client_update(message, client)
        act = {"push": self.push, "pull": self.pull}[instruction.next]
        return act(instruction, client, updated_memory(message, client))

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Take several clients' local steps in one computation; push and pull client after client."""
        if all(Instruction.from_message(message).next == "train" for message, _ in cohort):
            return super().cohort_update(cohort)
        return Method.cohort_update(self, cohort)

    def push(self, instruction: Instruction, client: Client, memory: Tensors) -> Update:
        """Send each neighbour a reserve (eq. 6), once; algorithm 1, lines 3 to 5."""
        s = self.settings
        x = self.embedding_of(memory["global"])(client.train, None)
        peers = {}
        for neighbour in instruction.neighbours:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"reserve {neighbour}")
            chosen = reserve(x, s.reserve, rng, s.reserve_kind)
            sent = self.share(client, memory, "reserve", chosen, rng)
            if len(sent.samples["reserve"]):
                peers[neighbour] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {self.exchange_metric: 1.0})

    def pull(self, instruction: Instruction, client: Client, memory: Tensors) -> Update:
        """Send each neighbour that pulls the samples chosen for it (algorithm 2), within the device's consent."""
        s = self.settings
        drop_pulled(memory)
        # A uniform pull needs no embeddings, so that it need not be limited to a few candidates (eq. 7).
        positions = torch.arange(len(client.train))
        embedded = dict[int, Embedded]()
        if self.plan.by_importance:
            positions = self.candidates(client, instruction.averagings)
            embedded = self.embed(client, memory, positions, instruction.neighbours)
        first, last = self.heat
        heat = first + (last - first) * instruction.step / s.steps
        peers = {}
        for neighbour in instruction.neighbours:
            rng = Streams(self.context.seed, client.streams.round, client.id).numpy(f"pull {neighbour}")
            if self.plan.by_importance:
                p = importance(*embedded[neighbour], clusters=s.clusters, heat=heat, macro=self.macro, rng=rng)
                chosen = draw(p, s.budget, rng)
            else:
                chosen = draw_uniformly(len(positions), s.budget, rng)
            sent = self.share(client, memory, "pulled", positions[chosen], rng)
            if len(sent.samples["pulled"]):
                peers[neighbour] = sent
        return Update(Message(facts={"n": len(client.train)}), peers, memory, {self.exchange_metric: 1.0})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Take local steps on own and pulled samples (eq. 4), from where the last ones left weights and optimiser."""
        memory = updated_memory(message, client)
        pulled = memory.get("pulled", NO_SAMPLES)
        samples = with_pulled(client.train, pulled)
        network = self.network()
        vectors = Vectors(network)
        vectors.load(network, memory["weights"])
        negatives: Negatives = self.settings.negatives
        if negatives == "pulled" and len(pulled) < 2:
            negatives = "batch"
        generator = client.streams.torch("views", samples.index.device)

        def finish(taken: TakenSteps) -> Update:
            others = {name: tensor for name, tensor in memory.items() if not name.startswith(OPTIMISER)}
            trained = others | taken.optimiser | {"weights": vectors.flatten(network)}
            return self.trained(message, client, trained, taken.metrics)

        rows = batch_positions(
            samples, len(pulled), self.context.local.batch, message.facts["steps"], client.streams, negatives
        )
        return LocalSteps(
            client,
            network.train(),
            rows,
            select_from(samples),
            batch_inputs(samples.data, self.recipe(), generator, self.loss.raw_anchor),
            finish,
            optimiser=memory,
            alike=negatives,
            generators=(generator,),
        )

    def step_loss(self, model: LocalModel, parameters: Tensors, batch: Batch, extra: Tensors) -> StepResult:
        """Return the local loss of first views, then second views, and of negatives where any were drawn."""
        with self.context.autocast():
            return self.loss(model, *batch), {}

    def optimiser(self, parameters: Iterable[nn.Parameter], round: int) -> torch.optim.Optimizer:
        """Return an optimiser at the learning rate of round 1: a round of the engine is a stretch of steps here."""
        return super().optimiser(parameters, 1)

    def trained(self, message: Message, client: Client, memory: Tensors, metrics: dict[str, float]) -> Update:
        """Return the update after local steps: the model goes up where an averaging follows, and to neighbours."""
        facts = message.facts
        pulled = memory.get("pulled", NO_SAMPLES)
        step = facts["step"] + facts["steps"]
        points = len(client.train) + len(pulled)
        # The sum over steps of the points held since the last averaging, and the number of these steps.
        counted = memory.get("points", torch.zeros(2, dtype=torch.float64)).cpu()
        counted = counted + torch.tensor([points * facts["steps"], facts["steps"]], dtype=torch.float64)
        tensors: Tensors = {}
        up: dict[str, Any] = {"n": len(client.train)}
        if self.plan.averages_at(step):
            tensors["weights"] = memory["weights"]
            up["points"] = float(counted[0] / counted[1])
            counted = torch.zeros(2, dtype=torch.float64)
        memory["points"] = counted
        peers = {}
        if self.plan.models_needed_at(step):
            peers = {neighbour: Message({"model": memory["weights"]}) for neighbour in facts["neighbours"]}
        return Update(Message(tensors, up), peers, memory, {**metrics, "pulled": float(len(pulled))})

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
    ) -> dict[int, Embedded]:
        """Return for each neighbour the embeddings that importance needs, by the global model or by its own."""
        candidates = client.train.take(positions.to(client.train.index.device))
        received = reserves(client.train, memory, neighbours)
        generator = client.streams.torch("anchors", self.context.device)
        if self.settings.selection == "cfcl":
            return embed_by_one_model(self.embedding_of(memory["global"]), candidates, received, generator)

        def model_of(neighbour: int) -> Embed:
            return self.embedding_of(memory.get(f"model/{neighbour}", memory["global"]))

        return embed_by_each_model(model_of, candidates, received, generator)

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
                    parts.append(self.loss.embed(network, as_input(x)).float().cpu())
            return torch.cat(parts)

        return embed

    def share(self, client: Client, memory: Tensors, kind: str, positions: Tensor, rng: np.random.Generator) -> Message:
        """Return a message of samples to a neighbour, of no more than the device consents to share."""
        limit = dict(self.settings.consent).get(client.id)
        return package(client.train, kind, consented(positions, limit, memory, rng), client.streams.round)

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
        step = self.plan.step_after(state)
        if vectors:
            shares = [p / sum(points) for p in points]
            model["weights"] = aggregated_vectors(vectors, shares, self.context.aggregation, model["weights"])
            after = state.with_average()
        else:
            after = state.without_average(participants)
        after = replace(after, step=step, next=self.plan.next_action(step, state.next, bool(state.edges)))
        return server.next(model, facts=after.facts(), finished=after.next == "end")

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Return weights with BatchNorm's statistics, where the encoder has it, on the devices' own data."""
        network = self.network()
        vectors = Vectors(network)
        vectors.load(network, server.model["weights"])
        found = recalibrate(network, clients, evaluation, self.context)
        if not found:
            return {}
        return {"weights": vectors.flatten(network)}

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to unit embeddings (n, e)."""
        network = self.network()
        Vectors(network).load(network, server.model["weights"])
        network.eval()
        return embed_with(lambda x: self.loss.embed(network, x), self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function from samples to embeddings, without clusters: `cluster` is -1, `soft` has no column."""
        return features_only(self.embedder(server))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return a linear probe after an averaging, and after every round how evenly labels are spread.

        `label_variance` is the variance over devices of the number of points of a label that a device has, averaged
        over labels; `label_share_variance` is the same for shares of its points. `redundancy` is the share of the
        points it has from others whose label is among its own. Points pulled in this round count.
        `probe` is trained and tested on at most `PROBE_SAMPLES` samples each, the same ones after every averaging;
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
            metrics |= quick_probe(embed, evaluation, PROBE_SAMPLES)
        return metrics

    def tables(self, history: RunHistory) -> dict[str, DataFrame]:
        """Return the table `exchange`: who was sent whose samples."""
        from shoal.methods.cfcl.exchange import exchange_table  # here: training needs no pandas

        return {"exchange": exchange_table(history.clients)}
