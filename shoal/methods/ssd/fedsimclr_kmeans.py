"""FedSimCLR, then federated K-means on its features: a federated clustering in which no data is pooled.

The first rounds are FedSimCLR's. In the last `kmeans_rounds` the encoder is fixed:

1. Clients send the moments of their features, from which the server computes the principal components of all features.
2. Clients cluster their own samples among these components, whitened and scaled to unit length. They send centres and
   counts, from which the server draws several starts.
3. Each further round is one iteration of K-means for all starts: clients send the sums and counts of their clusters.
   The start with the lowest cost counts.

Under uneven clients averaged features stay good where averaged cluster heads do not: the heads of clients with
different classes disagree about which output means what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.clustering.declared_sums import (
    ClientLimits,
    check_local_centres,
    check_outer,
    count_form,
    iteration_form,
    total_form,
)
from shoal.methods.clustering.federated_k_means import (
    Moments,
    cluster_sums,
    moments,
    moved_centres,
    nearest,
    starting_centres,
    whitening,
)
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, Clients, Evaluation, Server, SummedRows, Update
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.ssd.fedsimclr import FedSimCLR, FedSimCLRSettings

CENTRES = "kmeans.centres"
"""Server tensor (s, c, k) float64: the centres of every start."""
MEAN = "kmeans.mean"
"""Server tensor (d,) float64: the mean of the features."""
PROJECTION = "kmeans.projection"
"""Server tensor (d, k) float64: projects features on the components that are clustered."""
OF_KMEANS = "kmeans."
"""Prefix of the server's tensors that are not of the network."""
FEATURES = "features"
"""Memory of a client (n, d) float32: the features of its samples under the fixed encoder."""
FORWARD_ROWS = 512
"""Samples in one forward pass."""
Step = Literal["train", "measure", "start", "move"]
"""Purpose of a round: learn features, measure them, start K-means, or take one iteration of it."""
MAX_REST_MOVE = 1e-9
"""K-means is finished when no centre of the best start moves by more than this."""


@dataclass(frozen=True)
class FedSimCLRKMeansSettings(FedSimCLRSettings):
    """Hyper-parameters of FedSimCLR with federated K-means."""

    kmeans_rounds: int = setting(
        20,
        "number of last rounds of the run that fix the encoder and find the clusters by federated K-means; at least "
        "one round trains, however few there are",
        ge=3,
    )
    components: int = setting(
        32,
        "number of principal components of the features, whitened and scaled to unit length, among which clusters are "
        "found",
        ge=1,
    )
    whitening: float = setting(
        0.75,
        "how far the variances v of the components are made equal: they become v^(1 - whitening), so that 1 makes all "
        "of them 1 and 0 leaves them as they are",
        ge=0,
        le=1,
    )
    starts: int = setting(
        30,
        "number of K-means starts that run side by side; the one with the lowest sum of squared distances counts",
        ge=1,
    )
    min_points: int = setting(
        2,
        "smallest number of a client's samples in a cluster of which it sends a centre or a sum; a smaller cluster "
        "would reveal single samples",
        ge=1,
    )


class FedSimCLRKMeans(FedSimCLR):
    """FedSimCLR with federated K-means as a method.

    The server state is encoder and projector. After training it also holds mean and projection of the features, then
    the centres of every start; its facts hold the costs of the starts and the clients that have the encoder. The memory
    of a client then holds the features of its samples.
    """

    name = "fedsimclr_kmeans"
    title = "FedSimCLR, then federated K-means"
    question = Question.IMAGES
    about = "Trains an encoder, then clusters its features over all clients."
    Settings = FedSimCLRKMeansSettings
    settings: FedSimCLRKMeansSettings
    needs_clusters = True
    averages = False  # the last rounds move centres
    averages_parts = True
    loss_note = (
        "The loss ends with training by design: the last method.kmeans_rounds rounds find clusters and train nothing."
    )

    @property
    def training_rounds(self) -> int:
        """The number of rounds that train the encoder."""
        return max(1, self.context.rounds - self.settings.kmeans_rounds)

    def next_step(self, server: Server) -> Step:
        """Return the purpose of the round after a state."""
        if server.round < self.training_rounds:
            return "train"
        if PROJECTION not in server.model:
            return "measure"
        return "move" if CENTRES in server.model else "start"

    def broadcast(self, server: Server, client: int) -> Message:
        """Send the network; a client that has the fixed encoder gets only the tensors of K-means."""
        facts = {"clients": server.facts["clients"], "step": self.next_step(server)}
        network = {} if client in server.facts.get("have", ()) else network_tensors(server.model)
        return Message(network | {name: t for name, t in server.model.items() if name.startswith(OF_KMEANS)}, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare weights while the encoder is trained; then moments, local centres, or sums."""
        step = self.next_step(server)
        if step == "train":
            return MessageForm(forms_like(network_tensors(server.model)), {"n": exactly(samples)})
        if step == "move":
            return iteration_form(server.model[CENTRES], self.limits(server, samples))
        width = int(self.network().encoder.features)
        if step == "measure":
            forms = {
                "samples": count_form((), samples),
                "total": TensorForm((width,), torch.float64),
                "outer": TensorForm((width, width), torch.float64),
            }
            return MessageForm(forms, rule=partial(check_outer, limits=self.limits(server, samples)))
        width = server.model[PROJECTION].shape[1]
        sizes = range(self.context.clusters + 1)
        forms = {"centres": total_form((sizes, width)), "counts": count_form((sizes,), samples)}
        return MessageForm(forms, rule=partial(check_local_centres, unit=True, samples=samples))

    def limits(self, server: Server, samples: int) -> ClientLimits:
        """Return the limits of a client's sums: features that have been projected are of unit length."""
        energy = samples if PROJECTION in server.model else math.inf
        return ClientLimits(samples, self.settings.min_points, energy)

    def client_update(self, message: Message, client: Client) -> Update:
        """Run FedSimCLR's local epochs, or send moments, local centres, or the sums of one K-means iteration."""
        step = message.facts["step"]
        if self.takes_steps(message):
            return super().client_update(message, client)
        features, memory = self.features(message, client)
        if step == "measure":
            measured = features if len(features) >= self.settings.min_points else features[:0]
            tensors = moments(measured)._asdict()
        elif step == "start":
            tensors = self.local_centres(clustered(features, message.tensors), client)
        else:
            x = clustered(features, message.tensors)
            tensors = cluster_sums(x, message.tensors[CENTRES], min_points=self.settings.min_points)._asdict()
        return Update(Message({name: t.cpu() for name, t in tensors.items()}), memory=memory)

    def summed_rows(self, message: Message, client: Client) -> SummedRows | None:
        """Return the points of a client that are clustered; None before there are any."""
        if PROJECTION not in message.tensors:
            return None
        return SummedRows(clustered(self.features(message, client)[0], message.tensors).cpu(), total_known=False)

    def takes_steps(self, message: Message) -> bool:
        """Return whether a round trains the encoder; the others find clusters."""
        return bool(message.facts["step"] == "train")

    def local_centres(self, x: Tensor, client: Client) -> Tensors:
        """Return a client's own K-means: `centres` (at most c, k) and their numbers of samples `counts`, float64."""
        count = min(self.context.clusters, max(1, len(x) // self.settings.min_points))
        centres, counts = kmeans(x.cpu().numpy(), count, client.streams.numpy("kmeans")).counted()
        large = counts >= self.settings.min_points
        return {"centres": centres[large], "counts": counts[large]}

    def features(self, message: Message, client: Client) -> tuple[Tensor, Tensors | None]:
        """Return the features (n, d) of the client's samples under the fixed encoder, and the memory where it is new.

        Raises:
            ClientError: the client has no sample, or features that are not finite.
        """
        if FEATURES in client.memory:
            return client.memory[FEATURES], None
        client.check_samples()
        embed = self.embedder(Server(message.tensors))
        positions = torch.arange(len(client.train), device=client.train.index.device)
        h = client.finite(torch.cat([embed(client.train.x(part)) for part in positions.split(FORWARD_ROWS)]))
        return h, {FEATURES: h.cpu()}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average the weights, compute the projection, draw starts from the clients' centres, or move all centres."""
        step = self.next_step(server)
        if step == "train":
            return super().aggregate(server, updates)
        received = list(updates)  # a few vectors each
        have = sorted({*server.facts.get("have", ()), *(update.client for update in received)})
        server = replace(server, facts={**server.facts, "have": have})
        if step == "start":
            return self.start_k_means(server, received)
        total = {
            name: torch.stack([u.message.tensors[name] for u in received]).sum(0)
            for name in received[0].message.tensors
        }
        if step == "measure":
            mean, projection = whitening(Moments(**total), self.settings.components, self.settings.whitening)
            return server.next({**server.model, MEAN: mean, PROJECTION: projection})
        return self.move_centres(server, total)

    def start_k_means(self, server: Server, updates: Sequence[Update]) -> Server:
        """Return the state with centres for every start, drawn from the clients' centres."""
        local, counts = (torch.cat([u.message.tensors[name] for u in updates]) for name in ("centres", "counts"))
        rng = Streams(self.context.seed).numpy("kmeans server")
        centres = starting_centres(local, counts, self.context.clusters, self.settings.starts, rng)
        return server.next({**server.model, CENTRES: centres})

    def move_centres(self, server: Server, total: Tensors) -> Server:
        """Return the state after one iteration with the sums of all clients; finished where the best start rests."""
        before = server.model[CENTRES]
        moved = moved_centres(before, total["sums"], total["counts"])
        costs = total["inertia"]
        best = int(costs.argmin())
        rests = bool((moved[best] - before[best]).abs().max() <= MAX_REST_MOVE)
        facts = server.facts | {"inertia": costs.tolist(), "best": best}
        return server.next({**server.model, CENTRES: moved}, facts=facts, finished=rests)

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to features (n, d) of the encoder in evaluation mode."""
        return super().embedder(replace(server, model=network_tensors(server.model)))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Find BatchNorm's statistics while the encoder is trained; clusters use features under the averaged ones."""
        return {} if self.next_step(server) != "train" else super().recalibrate(server, clients, evaluation)

    def centres(self, server: Server) -> Tensor | None:
        """Return the centres (c, k) of the best start, float64; None before K-means has begun."""
        if CENTRES not in server.model:
            return None
        return server.model[CENTRES][server.facts.get("best", 0)]

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function that assigns samples to the nearest centre; before K-means has begun FedSimCLR's."""
        best = self.centres(server)
        if best is None:
            return super().predictor(server)
        embed = self.embedder(server)
        centres = best.to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            h = clustered(embed(x), server.model)
            cluster = nearest(h, centres[None])[0][0]
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), h.float())

        return predict

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """Assign samples to the nearest centre; return None before K-means has begun."""
        centres = self.centres(server)
        if centres is None:
            return None
        return assign_samples(self.predictor(server), evaluation, centres=centres)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return FedSimCLR's metrics during training, then those of the clusters; at the end both."""
        if self.centres(server) is None:
            return super().evaluate(server, clients, evaluation)
        metrics = evaluate_predictor(self.predictor(server), replace(evaluation, final=False))
        return (super().evaluate(server, clients, evaluation) | metrics) if evaluation.final else metrics


def network_tensors(tensors: Tensors) -> Tensors:
    """Return the tensors of the network, without those of K-means."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(OF_KMEANS)}


def clustered(features: Tensor, tensors: Tensors) -> Tensor:
    """Return the points that are clustered (n, k), float64: features projected and scaled to unit length.

    Args:
        features: of the encoder, (n, d).
        tensors: of the server, or of its message.
    """
    mean, projection = (tensors[name].to(features.device) for name in (MEAN, PROJECTION))
    return F.normalize((features.double() - mean) @ projection, dim=1)
