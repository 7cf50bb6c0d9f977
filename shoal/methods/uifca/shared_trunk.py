"""UIFCA with one trunk, a variant of ours: the K flows share all but a Gaussian each, and clusters are contrasted.

Two flows that are fitted apart differ by more nats on points that neither has seen than the right cluster is worth, so
that comparing their densities says little of the cluster. Here the flows are one trunk, averaged over all clients as in
IFCA's weight sharing (Ghosh et al. 2020, section 5), and a Gaussian of each cluster in its latent space. Four things
besides:

- Every client has its own mixing proportions, the shares of the clusters among its points. By them it trains, and by
  their power `proportions` it assigns.
- Beside the likelihood, points are taught their cluster against the others (cross-entropy of the posteriors), on views.
- A point goes to the cluster that is likeliest on average over several views of it.
- The server moves an offset of each cluster, so that clusters are equally full over the federation, not in each client.

The first assignment is k-FED's. Which point is in which cluster never leaves the client.

Symbols in shapes: n points, K clusters, d dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.augment import RECIPES, augment
from shoal.methods.averaging.robust import mean_by
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Method, Server, Update
from shoal.methods.contract.context import LocalSettings, MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.clustering import cluster_scores
from shoal.methods.training.local import build_optimiser, load, run_steps, seeded, view_recipe, weights
from shoal.methods.uifca import kfed_start
from shoal.methods.uifca.declared import beyond_centres, memory_form
from shoal.methods.uifca.flow_method import BATCH, minibatches, new_flow
from shoal.methods.uifca.latent_mixture import LOG_DEVIATIONS, MEANS, LatentMixture, breadth
from shoal.methods.uifca.shared_protocol import OFFSETS, State, form_of, gaussians, mixture_of, moved_offsets

OWN = (MEANS, LOG_DEVIATIONS)
FASTER = 10.0
"""The Gaussians' learning rate over that of the trunk."""
NEVER = 1e-30
"""The share, in training, of a cluster that a client has no point of: its Gaussian is then left alone."""
TOP = 255.999
"""Largest value of a pixel as flows take them."""


@dataclass(frozen=True)
class SharedUIFCASettings:
    """Hyper-parameters of UIFCA with one trunk."""

    cluster_rounds: int = setting(15, "number of cluster rounds", ge=1)
    first_rounds: int = setting(
        6, "communication rounds of the first cluster round, which learns k-FED's clusters", ge=1
    )
    comm_rounds: int = setting(3, "communication rounds of each further cluster round", ge=1)
    steps: int = setting(20, "number of local steps in each communication round", ge=1)
    flow: Literal["auto", "affine", "tabular", "cycle", "standard"] = setting(
        "auto", "kind of normalising flow of the trunk; auto: affine for vectors, cycle for images"
    )
    layers: Literal["auto", "conv", "dense"] = setting(
        "auto",
        "networks of the cycle flow: convolutions, or only linear layers, which suit small images on a CPU; auto: the "
        "latter",
    )
    width: int = setting(
        16, "number of filters in the flow's networks; for tabular and dense flows a quarter of the hidden width", ge=1
    )
    blocks: int = setting(2, "number of residual blocks in the flow's convolutional networks", ge=1)
    margin: float = setting(
        0.05, "for images: the logit is taken of values squeezed into [margin, 1 - margin]", gt=0, lt=0.5
    )
    contrast: float = setting(
        1.0,
        "weight of the contrast of a point's cluster with the others beside the nats per dimension, where a client "
        "has all clusters alike; of fewer it is less by as much",
        ge=0,
    )
    temperature: float = setting(
        0.15, "nats per dimension by which log-densities are divided in posteriors: the larger, the softer", gt=0
    )
    proportions: float = setting(
        0.5, "power of a client's own mixing proportions where it assigns its points; 0: all clusters alike", ge=0, le=1
    )
    balance: float = setting(
        0.5, "how far the server evens out, a round, how full the clusters are over all clients; 0: not", ge=0, le=1
    )
    views: int = setting(4, "number of views of an image whose posteriors are averaged where it is assigned", ge=1)
    min_points: int = setting(
        2, "number of points that a centre of k-FED is the mean of, at least; see method kfed", ge=1
    )


class Assigned(NamedTuple):
    """Of a client's points: the cluster, int64 (n,); summed posteriors (K,); and how many changed their cluster."""

    cluster: Tensor
    fullness: Tensor
    changed: int


class SharedUIFCA(Method):
    """UIFCA with one trunk as a method: server state is a `LatentMixture`, the offsets, and `State`."""

    name = "uifca_shared"
    Settings = SharedUIFCASettings
    settings: SharedUIFCASettings
    kinds = ("vector", "image")
    local_defaults = LocalSettings(epochs=1, batch=64, optimiser="adam", lr=1e-3)
    averages_parts = True
    warmup_rounds = 2  # centres, and moments of their clusters
    loss_falls = False  # the clusters change

    def network(self) -> LatentMixture:
        """The mixture with the run's start: a seeded trunk, and standard normals."""
        s, c = self.settings, self.context
        network = seeded(lambda: LatentMixture(new_flow(s, c), c.clusters), c, "mixture", self.network_cache)
        assert isinstance(network, LatentMixture)
        return network

    def loaded(self, tensors: Tensors) -> LatentMixture:
        """The mixture with tensors that were broadcast, or that the server has, in evaluation mode."""
        network = self.network()
        load(network, mixture_of(tensors))
        network.eval()
        return network

    def init_server(self, federation: Federation) -> Server:
        """The start; the first round collects local centres."""
        offsets = torch.zeros(self.context.clusters)
        return Server({**weights(self.network()), OFFSETS: offsets}, facts=State().facts())

    def stage(self, server: Server) -> str:
        """What the round is for; where points are assigned anew clients take longer."""
        state = State.from_facts(server.facts)
        return f"{state.phase}, assigning" if state.cluster_round and not state.comm_round else state.phase

    def broadcast(self, server: Server, client: int) -> Message:
        """The mixture and the offsets; until k-FED's clusters are learned also those of the client's centres."""
        state = State.from_facts(server.facts)
        if state.phase == "centres":
            return Message(facts=server.facts)
        tensors = dict(server.model)
        if (labels := server.state.get(f"labels/{client}")) is not None:
            tensors["labels"] = labels
        return Message(tensors, server.facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Local centres, moments, or a trained mixture: by what the round is for."""
        return form_of(server, samples, self.context)

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """The clusters of the client's points."""
        return memory_form(self.context.clusters, samples)

    def mismatch(self, update: Update) -> str | None:
        """A local cluster without a centre: it could not be judged."""
        return beyond_centres(update)

    # --- clients --------------------------------------------------------------------------------------------------

    def client_update(self, message: Message, client: Client) -> Update:
        """Send local centres; then the moments of k-FED's clusters; then assign where that is due, and learn."""
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
        state = State.from_facts(message.facts)
        if state.phase == "centres":
            return kfed_start.send_centres(client, self.context.clusters, self.settings.min_points)
        if not bool(torch.isfinite(client.train.x().float()).all()):
            raise ClientError(f"client {client.id} holds values that are not finite")
        network = self.loaded(message.tensors)
        if state.phase == "moments":
            return self.moments(network, message, client)
        assigned = self.assign(network, message, client, state)
        return self.learn(network, client, assigned, state)

    def moments(self, network: LatentMixture, message: Message, client: Client) -> Update:
        """Sums and sums of squares of each cluster's points in the latent space, (K, d) each."""
        clusters, dimensions = self.context.clusters, math.prod(self.context.spec.shape)
        cluster = kfed_start.kfed_assignment(message, client)
        total = torch.zeros(clusters, dimensions, dtype=torch.float64, device=client.train.index.device)
        squares, counts = torch.zeros_like(total), [0] * clusters
        memory = None
        if cluster is not None:  # it had a part in k-FED's round
            cluster = cluster.to(client.train.index.device)
            generator = client.streams.torch("noise", self.context.device)
            with torch.no_grad():
                for part in self.positions(client).split(BATCH):
                    z = network.latent(self.points(client, part, generator, view=False))[0].double()
                    total.index_add_(0, cluster[part], z)
                    squares.index_add_(0, cluster[part], z.square())
            counts = torch.bincount(cluster, minlength=clusters).tolist()
            memory = {"assignment": cluster, "cluster_round": torch.tensor([0])}
        facts = {"n": len(client.train), "counts": counts, "changed": 0}
        tensors = {"total": total.float().cpu(), "squares": squares.float().cpu()}
        return Update(Message(tensors, facts), memory=memory)

    def assign(self, network: LatentMixture, message: Message, client: Client, state: State) -> Assigned:
        """The cluster of each point, once a cluster round; and how full the clusters are with the client's points."""
        before = client.memory.get("assignment")
        if before is None:
            before = kfed_start.kfed_assignment(message, client)
        of_round = int(client.memory["cluster_round"]) if "cluster_round" in client.memory else 0
        due = before is None or of_round < state.cluster_round
        views = self.settings.views if due and self.context.spec.kind == "image" else 1
        found = self.posteriors(network, message.tensors[OFFSETS], client, before, views)
        after = found.argmax(1) if before is None or due else before.to(found.device)
        changed = len(after) if before is None else int((after != before.to(after.device)).sum())
        return Assigned(after, found.sum(0), changed)

    def posteriors(
        self, network: LatentMixture, offsets: Tensor, client: Client, cluster: Tensor | None, views: int
    ) -> Tensor:
        """Posteriors of the clusters for each of a client's points, averaged over views, (n, K).

        Args:
            network: the mixture.
            offsets: of the server, (K,).
            client: whose points they are.
            cluster: of each point so far, for the client's proportions, int64 (n,); None: all clusters alike.
            views: how many; of one it is the point as it is.
        """
        power, device = self.settings.proportions, self.context.device
        prior = -offsets.to(device)
        if cluster is not None:
            counts = torch.bincount(cluster.to(device), minlength=len(prior)).float() + 1
            prior = prior + power * (counts / counts.sum()).log()
        generator = client.streams.torch("assignment", device)
        found = []
        with torch.no_grad():
            for part in self.positions(client).split(BATCH):
                rows = [self.points(client, part, generator, view=views > 1) for _ in range(views)]
                found.append(torch.stack([(self.scaled(network(x)) + prior).softmax(1) for x in rows]).mean(0))
        return torch.cat(found)

    def scaled(self, log_density: Tensor) -> Tensor:
        """Log-densities in units of the temperature: what posteriors are the softmax of."""
        return log_density / (self.settings.temperature * math.prod(self.context.spec.shape))

    def positions(self, client: Client) -> Tensor:
        """Those of all of a client's points, int64 (n,)."""
        return torch.arange(len(client.train), device=client.train.index.device)

    def points(self, client: Client, positions: Tensor, generator: torch.Generator, *, view: bool) -> Tensor:
        """Points as flows take them: vectors as they are; images, or views of them, dequantised to [0, 256)."""
        if self.context.spec.kind != "image":
            return client.train.raw(positions).float()
        x = client.train.x(positions)
        if view:
            x = augment(x, view_recipe(self.context, RECIPES["moved"]), generator)
        return (x * 255 + torch.rand(x.shape, generator=generator, device=x.device)).clamp(max=TOP)

    def learn(self, network: LatentMixture, client: Client, assigned: Assigned, state: State) -> Update:
        """Minibatch steps on the nats per dimension of points in their clusters, and the contrast with the others."""
        s, local, clusters = self.settings, self.context.local, self.context.clusters
        dimensions = math.prod(self.context.spec.shape)
        counts = torch.bincount(assigned.cluster, minlength=clusters)
        share = (counts / len(client.train)).clamp_min(NEVER).log()
        weight = s.contrast * breadth(share) / clusters
        network.train()
        round = client.streams.round
        slow = build_optimiser(network.flow.parameters(), local, round, self.context.device)
        slow.add_param_group(
            {"params": [network.means, network.log_deviations], "lr": FASTER * slow.param_groups[0]["lr"]}
        )
        generator = client.streams.torch("views", self.context.device)
        draws = minibatches(client.streams, 0, len(client.train), s.steps, local.batch).to(assigned.cluster.device)

        def step(positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            density = network(self.points(client, positions, generator, view=True))
            cluster = assigned.cluster[positions]
            nats = -density.gather(1, cluster[:, None]).mean() / dimensions
            contrast = F.cross_entropy(self.scaled(density) + share, cluster)
            return nats + weight * contrast, {"nats": nats, "contrast": contrast}

        metrics = run_steps(client, draws, slow, step)
        tensors = weights(network) | {"fullness": assigned.fullness.cpu()}
        facts = {"n": len(client.train), "counts": counts.tolist(), "changed": assigned.changed}
        memory = {"assignment": assigned.cluster, "cluster_round": torch.tensor([state.cluster_round])}
        return Update(Message(tensors, facts), memory=memory, metrics={**metrics, "changed": float(assigned.changed)})

    # --- server ---------------------------------------------------------------------------------------------------

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """K-FED's clusters; then a Gaussian of each; then the mean of the mixtures, and offsets moved."""
        s, state = self.settings, State.from_facts(server.facts)
        if state.phase == "centres":
            labels = kfed_start.labels_of(updates, self.context.clusters, self.context.seed)
            return server.next(server.model, state=labels, facts=replace(state, phase="moments").facts())
        if state.phase == "moments":
            model = {**server.model, **gaussians(updates)}
            return server.next(model, facts=replace(state, phase="learn").facts())
        mixture = mixture_of(server.model)
        trunk = {name: tensor for name, tensor in mixture.items() if name not in OWN}
        shared = mean_by(self.context.aggregation, trunk)
        own = [
            mean_by(self.context.aggregation, {name: mixture[name][k] for name in OWN})
            for k in range(self.context.clusters)
        ]
        fullness = torch.zeros(self.context.clusters, dtype=torch.float64)
        for update in updates:
            sent, facts = update.message.tensors, update.message.facts
            shared.add({name: sent[name] for name in trunk}, float(facts["n"]))
            for k, count in enumerate(facts["counts"]):
                if count:
                    own[k].add({name: sent[name][k] for name in OWN}, float(count))
            fullness += sent["fullness"].double()
        rows = [mean.mean() if mean.weight else {name: mixture[name][k] for name in OWN} for k, mean in enumerate(own)]
        tensors = shared.mean() | {name: torch.stack([row[name] for row in rows]) for name in OWN}
        tensors[OFFSETS] = moved_offsets(server.model[OFFSETS], fullness, s.balance)
        state = replace(state, comm_round=state.comm_round + 1)
        if state.comm_round == (s.comm_rounds if state.cluster_round else s.first_rounds):
            state = replace(state, cluster_round=state.cluster_round + 1, comm_round=0)
        # Clients that come later still need k-FED's labels in the first cluster round.
        labels = {} if state.cluster_round else server.state
        finished = state.cluster_round == s.cluster_rounds
        return server.next(tensors, state=labels, facts=state.facts(), finished=finished)

    # --- what is found --------------------------------------------------------------------------------------------

    def current(self, server: Server, clients: Clients) -> tuple[Tensor, Tensor, Tensor | None]:
        """Clients' points, as positions in the data: these int64 (n,), their clusters int64 (n,), and true classes.

        The clusters are what clients would find if a cluster round began now.
        """
        network, offsets = self.loaded(server.model), server.model[OFFSETS]
        views = self.settings.views if self.context.spec.kind == "image" else 1
        index, cluster, truth = [], [], []
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
        """Clusters in use over all clients' points, and, of data with labels, purity, ACC, NMI and ARI."""
        state = State.from_facts(server.facts)
        if state.phase != "learn":
            return {}
        _, cluster, truth = self.current(server, clients)
        sizes = torch.bincount(cluster, minlength=self.context.clusters)
        metrics = {
            "cluster_round": float(state.cluster_round),
            "clusters_used": float((sizes > 0).sum()),
            "largest_share": float(sizes.max()) / len(cluster),
        }
        return metrics | (cluster_scores(truth.numpy(), cluster.numpy()) if truth is not None else {})

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Clients' points as `current` says; test samples as the predictor.

        Raises:
            MethodError: before there are Gaussians.
        """
        predict = self.predictor(server)
        index, cluster, _ = self.current(server, clients)
        return assign_samples(predict, evaluation, None, held=(index, cluster.to(index.device)))

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The likeliest cluster under the server's offsets; its posteriors, and the K log-densities as embedding.

        Raises:
            MethodError: before there are Gaussians.
        """
        if State.from_facts(server.facts).phase != "learn":
            raise MethodError("UIFCA with one trunk has no clusters in its first two rounds")
        network, offsets = self.loaded(server.model), server.model[OFFSETS].to(self.context.device)

        @torch.no_grad()
        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device).float()
            density = network(x * 255 + 0.5 if self.context.spec.kind == "image" else x)
            soft = (self.scaled(density) - offsets).softmax(1)
            return Prediction(soft.argmax(1), soft, density)

        return predict
