"""UIFCA with one trunk, a variant of ours: the K flows share all but a Gaussian each, and clusters are contrasted.

Two flows that are fitted separately differ on unseen points by more nats than the right cluster is worth, so that a
comparison of their densities says little about the cluster. Here the flows are one trunk, averaged over all clients as
in IFCA's weight sharing (Ghosh et al. 2020, section 5), and a Gaussian of each cluster in its latent space. Moreover:

- Every client has its own mixing proportions, the shares of the clusters among its points. It trains with them, and it
  assigns with their square root.
- The loss adds to the likelihood the contrast of a point's cluster with the others (cross-entropy of the posteriors),
  on views.
- A point goes to the cluster that is likeliest on average over several views of it.
- The server moves an offset of each cluster, so that clusters are equally full over the federation, not in each client.

The first assignment is k-FED's. The cluster of a point never leaves the client.

Symbols in shapes: n points, K clusters, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.views.augment import RECIPES, augment
from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Method, Server, Update
from shoal.methods.contract.context import LocalSettings, MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples, assignment_metrics
from shoal.methods.training.local import build_optimiser, load, seeded, view_recipe, weights
from shoal.methods.training.steps import run_steps
from shoal.methods.uifca.declared import beyond_centres, memory_form
from shoal.methods.uifca.flow_method import FORWARD_POINTS, FlowName, minibatches, new_flow
from shoal.methods.uifca.kfed import gather_centres, kfed_assignment, send_centres
from shoal_research.variants.latent_mixture import LOG_DEVIATIONS, MEANS, LatentMixture, breadth
from shoal_research.variants.shared_protocol import OFFSETS, State, form_of, gaussians, mixture_of, moved_offsets

GAUSSIAN = (MEANS, LOG_DEVIATIONS)
GAUSSIAN_RATE = 10.0
"""Learning rate of the Gaussians over that of the trunk."""
MIN_SHARE = 1e-30
"""Share, in training, of a cluster of which a client has no point: its Gaussian does not move then."""
MAX_PIXEL = 255.999
"""Largest value of a pixel in the input of flows."""
TEMPERATURE = 0.15
"""Nats per dimension by which log-densities are divided in posteriors: the larger, the softer."""
PROPORTIONS_POWER = 0.5
"""Power of a client's own mixing proportions where it assigns its points."""
VIEWS = 4
"""Number of views of an image whose posteriors are averaged where it is assigned."""
FIRST_FACTOR = 2
"""The first cluster round, which learns k-FED's clusters, has so many times as many communication rounds as others."""


@dataclass(frozen=True)
class SharedUIFCASettings:
    """Hyper-parameters of UIFCA with one trunk."""

    cluster_rounds: int = setting(15, "number of cluster rounds", ge=1)
    comm_rounds: int = setting(
        3,
        "communication rounds of each cluster round; the first one, which learns k-FED's clusters, has twice as many",
        ge=1,
    )
    steps: int = setting(20, "number of local steps in each communication round", ge=1)
    flow: FlowName = setting(
        "auto",
        "kind of normalising flow of the trunk, see method uifca; auto: affine for vectors, dense_cycle for images",
    )
    width: int = setting(
        16, "number of filters in the flow's networks; for tabular and dense flows a quarter of the hidden width", ge=1
    )
    min_points: int = setting(2, "smallest number of points whose mean a centre of k-FED is; see method kfed", ge=1)


class AssignAnswer(NamedTuple):
    """The clusters of a client's points, int64 (n,), their summed posteriors (K,), and the number of changes."""

    cluster: Tensor
    fullness: Tensor
    changed: int


class SharedUIFCA(Method):
    """UIFCA with one trunk as a method: the server state is a `LatentMixture`, the offsets, and `State`."""

    name = "uifca_shared"
    title = "UIFCA with one trunk"
    question = Question.GENERATORS
    about = "The clusters share one flow and differ in its latent space."
    Settings = SharedUIFCASettings
    settings: SharedUIFCASettings
    kinds = ("vector", "image")
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    averages_parts = True
    warmup_rounds = 2  # centres, and moments of their clusters
    first_round_with_clusters = 3

    loss_note = (
        "The loss may jump after every method.comm_rounds rounds by design: then samples are assigned to clusters "
        "again, and it is measured against the new ones."
    )

    def network(self) -> LatentMixture:
        """Build the mixture with the run's start: a seeded trunk, and standard normals."""
        network = seeded(self.build, self.context, "mixture", self.network_cache)
        assert isinstance(network, LatentMixture)
        return network

    def build(self) -> LatentMixture:
        """Build the mixture; its initial weights come from torch's global generator."""
        trunk = new_flow(self.settings.flow, self.context, self.settings.width, of_images="dense_cycle")
        return LatentMixture(trunk, self.context.clusters)

    def loaded(self, tensors: Tensors) -> LatentMixture:
        """Return the mixture with the tensors of a broadcast or of the server, in evaluation mode."""
        network = self.network()
        load(network, mixture_of(tensors))
        network.eval()
        return network

    def init_server(self, federation: Federation) -> Server:
        """Return the start; the first round collects local centres."""
        offsets = torch.zeros(self.context.clusters)
        return Server({**weights(self.network()), OFFSETS: offsets}, facts=State().facts())

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the mixture and the offsets; until k-FED's clusters are learned also those of the client's centres."""
        state = State.from_facts(server.facts)
        if state.phase == "centres":
            return Message(facts=server.facts)
        tensors = dict(server.model)
        if (labels := server.state.get(f"labels/{client}")) is not None:
            tensors["labels"] = labels
        return Message(tensors, server.facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare local centres, moments, or a trained mixture, by the purpose of the round."""
        return form_of(server, samples, self.context)

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the clusters of the client's points, and the cluster round in which they were found."""
        form = memory_form(self.context.clusters, samples)
        number = TensorForm((1,), torch.int64, minimum=0)
        tensors = {**form.tensors, "cluster_round": number}
        return replace(form, tensors=tensors, optional=tuple(tensors))

    def mismatch(self, update: Update) -> str | None:
        """Return the fault of a local cluster without a centre, else None: it could not be judged."""
        return beyond_centres(update)

    # --- clients --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Send local centres; then the moments of k-FED's clusters; then assign where that is due, and learn."""
        client.check_samples()
        state = State.from_facts(message.facts)
        if state.phase == "centres":
            return send_centres(client, self.context.clusters, self.settings.min_points)
        client.finite(client.train.x().float())
        network = self.loaded(message.tensors)
        if state.phase == "moments":
            return self.moments(network, message, client)
        assigned = self.assign(network, message, client, state)
        return self.learn(network, client, assigned, state)

    def moments(self, network: LatentMixture, message: Message, client: Client) -> Update:
        """Send the sums and the sums of squares of each cluster's points in the latent space, (K, d) each."""
        clusters = self.context.clusters
        dimensions = math.prod(self.context.spec.shape)
        cluster = kfed_assignment(message, client)
        total = torch.zeros(clusters, dimensions, dtype=torch.float64, device=client.train.index.device)
        squares = torch.zeros_like(total)
        counts = [0] * clusters
        memory = None
        if cluster is not None:  # the client took part in k-FED's round
            cluster = cluster.to(client.train.index.device)
            generator = client.streams.torch("noise", self.context.device)
            with torch.no_grad():
                for part in self.positions(client).split(FORWARD_POINTS):
                    z = network.latent(self.points(client, part, generator, view=False))[0].double()
                    total.index_add_(0, cluster[part], z)
                    squares.index_add_(0, cluster[part], z.square())
            counts = torch.bincount(cluster, minlength=clusters).tolist()
            memory = {"assignment": cluster, "cluster_round": torch.tensor([0])}
        facts = {"n": len(client.train), "counts": counts, "changed": 0}
        tensors = {"total": total.float().cpu(), "squares": squares.float().cpu()}
        return Update(Message(tensors, facts), memory=memory)

    def assign(self, network: LatentMixture, message: Message, client: Client, state: State) -> AssignAnswer:
        """Assign each point once a cluster round, and sum the posteriors of the client's points."""
        before = client.memory.get("assignment")
        if before is None:
            before = kfed_assignment(message, client)
        of_round = int(client.memory["cluster_round"]) if "cluster_round" in client.memory else 0
        due = before is None or of_round < state.cluster_round
        views = VIEWS if due and self.context.spec.kind == "image" else 1
        soft = self.posteriors(network, message.tensors[OFFSETS], client, before, views)
        after = soft.argmax(1) if before is None or due else before.to(soft.device)
        changed = len(after) if before is None else int((after != before.to(after.device)).sum())
        return AssignAnswer(after, soft.sum(0), changed)

    def posteriors(
        self, network: LatentMixture, offsets: Tensor, client: Client, cluster: Tensor | None, views: int
    ) -> Tensor:
        """Return the posteriors of the clusters for each of a client's points, averaged over views, (n, K).

        Args:
            network: the mixture.
            offsets: of the server, (K,).
            client: the client with the points.
            cluster: of each point so far, for the client's proportions, int64 (n,); None: all clusters alike.
            views: number of views; a single view is the point itself.
        """
        device = self.context.device
        prior = -offsets.to(device)
        if cluster is not None:
            counts = torch.bincount(cluster.to(device), minlength=len(prior)).float() + 1
            prior = prior + PROPORTIONS_POWER * (counts / counts.sum()).log()
        generator = client.streams.torch("assignment", device)
        parts = []
        with torch.no_grad():
            for part in self.positions(client).split(FORWARD_POINTS):
                rows = [self.points(client, part, generator, view=views > 1) for _ in range(views)]
                parts.append(torch.stack([(self.scaled(network(x)) + prior).softmax(1) for x in rows]).mean(0))
        return torch.cat(parts)

    def scaled(self, log_density: Tensor) -> Tensor:
        """Return log-densities in units of the temperature, of which posteriors are the softmax."""
        return log_density / (TEMPERATURE * math.prod(self.context.spec.shape))

    def positions(self, client: Client) -> Tensor:
        """Return the positions of all points of a client, int64 (n,)."""
        return torch.arange(len(client.train), device=client.train.index.device)

    def points(self, client: Client, positions: Tensor, generator: torch.Generator, *, view: bool) -> Tensor:
        """Return the inputs of flows: vectors unchanged; images, or views of them, dequantised to [0, 256)."""
        if self.context.spec.kind != "image":
            return client.train.raw(positions).float()
        x = client.train.x(positions)
        if view:
            x = augment(x, view_recipe(self.context, RECIPES["moved"]), generator)
        return (x * 255 + torch.rand(x.shape, generator=generator, device=x.device)).clamp(max=MAX_PIXEL)

    def learn(self, network: LatentMixture, client: Client, assigned: AssignAnswer, state: State) -> Update:
        """Take minibatch steps on the nats per dimension of points in their clusters, and on the contrast."""
        local = self.context.local
        clusters = self.context.clusters
        dimensions = math.prod(self.context.spec.shape)
        counts = torch.bincount(assigned.cluster, minlength=clusters)
        share = (counts / len(client.train)).clamp_min(MIN_SHARE).log()
        # Where a client has all clusters in equal shares, the contrast counts as much as the nats per dimension.
        weight = breadth(share) / clusters
        network.train()
        optimiser = build_optimiser(network.flow.parameters(), local, client.streams.round)
        rate = GAUSSIAN_RATE * optimiser.param_groups[0]["lr"]
        optimiser.add_param_group({"params": [network.means, network.log_deviations], "lr": rate})
        generator = client.streams.torch("views", self.context.device)
        draws = minibatches(client.streams, 0, len(client.train), self.settings.steps, local.batch)
        draws = draws.to(assigned.cluster.device)

        def step(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            density = network(self.points(client, positions, generator, view=True))
            cluster = assigned.cluster[positions]
            nats = -density.gather(1, cluster[:, None]).mean() / dimensions
            contrast = F.cross_entropy(self.scaled(density) + share, cluster)
            return nats + weight * contrast, {"nats": nats, "contrast": contrast}

        metrics = run_steps(client, draws, optimiser, step)
        tensors = weights(network) | {"fullness": assigned.fullness.cpu()}
        facts = {"n": len(client.train), "counts": counts.tolist(), "changed": assigned.changed}
        memory = {"assignment": assigned.cluster, "cluster_round": torch.tensor([state.cluster_round])}
        return Update(Message(tensors, facts), memory=memory, metrics={**metrics, "changed": float(assigned.changed)})

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Compute k-FED's clusters; then a Gaussian of each; then average the mixtures and move the offsets."""
        state = State.from_facts(server.facts)
        if state.phase == "centres":
            _, labels = gather_centres(updates, self.context.clusters, self.context.seed)
            return server.next(server.model, state=labels, facts=replace(state, phase="moments").facts())
        if state.phase == "moments":
            model = {**server.model, **gaussians(updates)}
            return server.next(model, facts=replace(state, phase="learn").facts())
        tensors = self.average(server, updates)
        state = replace(state, comm_round=state.comm_round + 1)
        if state.comm_round == self.settings.comm_rounds * (1 if state.cluster_round else FIRST_FACTOR):
            state = replace(state, cluster_round=state.cluster_round + 1, comm_round=0)
        # Clients that come later still need k-FED's labels in the first cluster round.
        labels = {} if state.cluster_round else server.state
        finished = state.cluster_round == self.settings.cluster_rounds
        return server.next(tensors, state=labels, facts=state.facts(), finished=finished)

    def average(self, server: Server, updates: Iterable[Update]) -> Tensors:
        """Return the mean of the mixtures: the trunk by all points, a Gaussian by those of its cluster; and offsets."""
        mixture = mixture_of(server.model)
        trunk = {name: tensor for name, tensor in mixture.items() if name not in GAUSSIAN}
        gaussian = [{name: mixture[name][k] for name in GAUSSIAN} for k in range(self.context.clusters)]
        shared = mean_by(self.context.aggregation, trunk)
        own = [mean_by(self.context.aggregation, start) for start in gaussian]
        fullness = torch.zeros(self.context.clusters, dtype=torch.float64)
        for update in updates:
            sent = update.message.tensors
            facts = update.message.facts
            shared.add({name: sent[name] for name in trunk}, float(facts["n"]))
            for k, count in enumerate(facts["counts"]):
                if count:
                    own[k].add({name: sent[name][k] for name in GAUSSIAN}, float(count))
            fullness += sent["fullness"].double()
        rows = [mean.mean() if mean.weight else start for mean, start in zip(own, gaussian, strict=True)]
        tensors = shared.mean() | {name: torch.stack([row[name] for row in rows]) for name in GAUSSIAN}
        tensors[OFFSETS] = moved_offsets(server.model[OFFSETS], fullness)
        return tensors

    # --- what is found --------------------------------------------------------------------------------------------

    def current(self, server: Server, clients: Clients) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the positions of clients' points in the data int64 (n,), their clusters int64 (n,), and true classes.

        The clusters are those that clients would find if a cluster round began now.
        """
        network = self.loaded(server.model)
        offsets = server.model[OFFSETS]
        views = VIEWS if self.context.spec.kind == "image" else 1
        index = []
        cluster = []
        truth = []
        for client in clients:
            if not len(client.train):
                continue
            before = client.memory.get("assignment")
            cluster.append(self.posteriors(network, offsets, client, before, views).argmax(1).cpu())
            index.append(client.train.index)
            if client.train.data.train_y is not None:
                truth.append(client.train.y().cpu())
        return torch.cat(index), torch.cat(cluster), torch.cat(truth) if truth else None

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of `assignment`, and the share of samples in the largest cluster."""
        state = State.from_facts(server.facts)
        if state.phase != "learn":
            return {}
        found = self.assignment(server, clients, evaluation)
        sizes = torch.bincount(found.cluster, minlength=self.context.clusters)
        progress = {
            "cluster_round": float(state.cluster_round),
            "largest_share": float(sizes.max()) / len(found.cluster),
        }
        return progress | assignment_metrics(found, evaluation)

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Assign clients' points as `current` does, and test samples as the predictor does.

        Raises:
            MethodError: before there are Gaussians.
        """
        predict = self.predictor(server)
        index, cluster, _ = self.current(server, clients)
        return assign_samples(predict, evaluation, own_clusters=(index, cluster.to(index.device)))

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to the likeliest cluster under the offsets, its posteriors, and log-densities (embedding).

        Raises:
            MethodError: before there are Gaussians.
        """
        if State.from_facts(server.facts).phase != "learn":
            raise MethodError("UIFCA with one trunk has no clusters in its first two rounds")
        network = self.loaded(server.model)
        offsets = server.model[OFFSETS].to(self.context.device)

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device).float()
            density = network(x * 255 + 0.5 if self.context.spec.kind == "image" else x)
            soft = (self.scaled(density) - offsets).softmax(1)
            return Prediction(soft.argmax(1), soft, density)

        return predict
