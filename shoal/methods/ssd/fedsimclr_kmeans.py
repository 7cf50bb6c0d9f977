"""FedSimCLR, then federated K-means on its features: a federated clustering in which no data is pooled.

The first rounds are FedSimCLR's. In the last `kmeans_rounds` the encoder is fixed:

1. Clients send the moments of their features, from which the server computes the principal components of all features.
2. Clients cluster their own samples among these components, whitened and scaled to unit length. They send centres and
   counts, from which the server draws several starts.
3. Each further round is one iteration of K-means for all starts: clients send the sums and counts of their clusters.
   The start with the lowest cost counts.

Under uneven clients averaged features stay good where averaged cluster heads do not: the heads of clients with
different classes disagree about which output means what.

Classes are often about even over the federation where they are even in no client. Clusters can be so too (`evenness`):
each has a price, which the server raises where too few samples come. The heads of FedCC are also trained towards
clusters of one size, but over the samples of one client at a time.

Where classes are uneven over the federation, prices would force them even. Half way through the iterations the server
therefore looks at the sizes that clusters keep against their prices: where these still differ much (`UNEVEN_SIZES`), it
drops prices and whitening, and plain K-means starts again among the principal components as they are. The larger the
evenness, the less sizes can differ, so that a large one always forces clusters of one size.
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
    check_move,
    check_outer,
    check_soft_iteration,
)
from shoal.methods.clustering.even_k_means import cost, lifted_centres, lifted_samples, moved_prices, soft_sums
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
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Method, Server, SummedRows, Update
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly, forms_like
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.evaluation import evaluate_predictor
from shoal.methods.ssd.fedsimclr import FedSimCLR, FedSimCLRSettings

CENTRES = "kmeans.centres"
"""Server tensor (s, c, k) float64: the centres of every start."""
PRICES = "kmeans.prices"
"""Server tensor (s, c) float64, only with `evenness`: the prices of every start's clusters."""
MEAN = "kmeans.mean"
"""Server tensor (d,) float64: the mean of the features."""
PROJECTION = "kmeans.projection"
"""Server tensor (d, k) float64: projects features on the components that are clustered."""
KMEANS_TENSORS = (CENTRES, PRICES, MEAN, PROJECTION)
FEATURES = "features"
"""Memory of a client (n, d) float32: the features of its samples under the fixed encoder."""
FORWARD_ROWS = 512
"""Samples in one forward pass."""
Step = Literal["train", "measure", "start", "move"]
"""Purpose of a round: learn features, measure them, start K-means, or take one iteration of it."""
SOFTNESS = 0.05
"""How softly samples belong to clusters with prices, in squared distances.

Where two clusters differ by this much, a sample belongs to the dearer one by 1/e as much as to the other.
"""
UNEVEN_SIZES = 0.1
"""Standard deviation of the logarithms of the clusters' sizes above which prices do not fit the data.

On digits, four seeds, it is 0.05 to 0.09 with even classes and 0.14 to 0.25 with each class 0.75 times the one before.
"""
MIN_PRICED_MOVES = 5
"""Iterations after which prices have about settled."""
MAX_REST_MOVE = 1e-9
"""K-means is finished when no centre or price of the best start moves by more than this."""


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
    evenness: float = setting(
        0.2,
        "weight of clusters of one size over the federation, in squared distances: a cluster half as large as the mean "
        "draws samples by 0.7 times this; dropped where the sizes stay uneven all the same; 0: plain K-means with "
        "clusters of any size",
        ge=0,
    )
    starts: int = setting(
        30,
        "number of K-means starts that run side by side; the one with the lowest cost counts: the sum of squared "
        "distances, with evenness also the cost of uneven sizes",
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
    the centres of every start and the prices of its clusters; its facts hold the costs of the starts and the clients
    that have the encoder. The memory of a client then holds the features of its samples.
    """

    name = "fedsimclr_kmeans"
    title = "FedSimCLR, then federated K-means"
    question = Question.IMAGES
    about = "Trains an encoder, then clusters its features over all clients."
    Settings = FedSimCLRKMeansSettings
    settings: FedSimCLRKMeansSettings
    averages = False  # the last rounds move centres
    averages_parts = True
    of_the_server = ("cluster_prices",)

    @classmethod
    def loss_note(cls, settings: FedSimCLRKMeansSettings, rounds: int) -> str:
        """Return when training ends."""
        trained = max(1, rounds - settings.kmeans_rounds)
        return f"The loss ends with round {trained} by design: the later rounds find clusters and train nothing."

    @property
    def last_priced_move(self) -> int:
        """The iteration after which prices that do not fit the data are dropped; 0: there are too few iterations."""
        iterations = self.context.rounds - self.training_rounds - 2
        if iterations < 2 * MIN_PRICED_MOVES:
            return 0
        return iterations // 2

    @property
    def needs_clusters(self) -> bool:
        """Return True: K-means finds a given number of clusters."""
        return True

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
        return Message(network | {name: t for name, t in server.model.items() if name in KMEANS_TENSORS}, facts)

    def declared(self, server: Server, client: int, samples: int) -> MessageForm | None:
        """Declare weights while the encoder is trained; then moments, local centres, or sums."""
        step = self.next_step(server)
        if step == "train":
            return MessageForm(forms_like(network_tensors(server.model)), {"n": exactly(samples)})
        count = partial(TensorForm, dtype=torch.float64, minimum=0, maximum=samples, measured=False)
        clusters = self.context.clusters
        if step == "move":
            return self.declared_sums(server, samples)
        width = int(self.network().encoder.features)
        if step == "measure":
            squares = TensorForm((width, width), torch.float64)
            forms = {"samples": count(()), "total": TensorForm((width,), torch.float64), "outer": squares}
            return MessageForm(forms, rule=partial(check_outer, limits=self.limits(server, samples)))
        width = server.model[PROJECTION].shape[1]
        sizes = range(clusters + 1)
        forms = {"centres": TensorForm((sizes, width), torch.float64), "counts": count((sizes,))}
        return MessageForm(forms, rule=partial(check_local_centres, unit=True, samples=samples))

    def declared_sums(self, server: Server, samples: int) -> MessageForm:
        """Declare the sums of one iteration, with the score that the starts are compared by."""
        count = partial(TensorForm, dtype=torch.float64, minimum=0, maximum=samples, measured=False)
        starts, clusters, width = server.model[CENTRES].shape
        centres = server.model[CENTRES]
        limits = self.limits(server, samples)
        forms = {"sums": TensorForm((starts, clusters, width), torch.float64), "counts": count((starts, clusters))}
        score = partial(TensorForm, (starts,), torch.float64, measured=False)
        if PRICES not in server.model:
            forms["inertia"] = score(minimum=0)
            return MessageForm(forms, rule=partial(check_move, centres=centres, limits=limits))
        forms |= {"value": score(), "products": count((starts, clusters, clusters))}
        prices = server.model[PRICES]
        rule = partial(check_soft_iteration, centres=centres, prices=prices, softness=SOFTNESS, limits=limits)
        return MessageForm(forms, rule=rule)

    def limits(self, server: Server, samples: int) -> ClientLimits:
        """Return the limits of a client's sums: features that have been projected are of unit length."""
        energy = samples if PROJECTION in server.model else math.inf
        return ClientLimits(samples, self.settings.min_points, energy)

    def client_update(self, message: Message, client: Client) -> Update:
        """Run FedSimCLR's local epochs, or send moments, local centres, or the sums of one K-means iteration."""
        step = message.facts["step"]
        if step == "train":
            return super().client_update(message, client)
        features, memory = self.features(message, client)
        if step == "measure":
            measured = features if len(features) >= self.settings.min_points else features[:0]
            tensors = moments(measured)._asdict()
        elif step == "start":
            tensors = self.local_centres(clustered(features, message.tensors), client)
        else:
            tensors = self.sums(clustered(features, message.tensors), message.tensors)
        return Update(Message({name: t.cpu() for name, t in tensors.items()}), memory=memory)

    def summed_rows(self, message: Message, client: Client) -> SummedRows | None:
        """Return the points of a client that are clustered; None before there are any."""
        if PROJECTION not in message.tensors:
            return None
        return SummedRows(clustered(self.features(message, client)[0], message.tensors).cpu(), total_known=False)

    def cohort_update(self, cohort: Sequence[tuple[Message, Client]]) -> list[Update | Exception]:
        """Train several clients in one computation; run the rounds that find clusters one client after another."""
        if all(message.facts["step"] == "train" for message, _ in cohort):
            return super().cohort_update(cohort)
        return Method.cohort_update(self, cohort)

    def local_centres(self, x: Tensor, client: Client) -> Tensors:
        """Return a client's own K-means: `centres` (at most c, k) and their numbers of samples `counts`, float64."""
        count = min(self.context.clusters, max(1, len(x) // self.settings.min_points))
        clustering = kmeans(x.cpu().numpy(), count, client.streams.numpy("kmeans"))
        counts = torch.bincount(torch.from_numpy(clustering.cluster), minlength=len(clustering.centres)).double()
        large = counts >= self.settings.min_points
        return {"centres": torch.from_numpy(clustering.centres).double()[large], "counts": counts[large]}

    def sums(self, x: Tensor, tensors: Tensors) -> Tensors:
        """Return a client's part of one iteration: sums, counts and scores of its samples x (n, k)."""
        min_points = self.settings.min_points
        if PRICES not in tensors:
            return cluster_sums(x, tensors[CENTRES], min_points=min_points)._asdict()
        return soft_sums(x, tensors[CENTRES], tensors[PRICES], SOFTNESS, min_points=min_points)._asdict()

    def features(self, message: Message, client: Client) -> tuple[Tensor, Tensors | None]:
        """Return the features (n, d) of the client's samples under the fixed encoder, and the memory where it is new.

        Raises:
            ClientError: the client has no sample, or features that are not finite.
        """
        if FEATURES in client.memory:
            return client.memory[FEATURES], None
        h = self.own_features(message, client)
        return h, {FEATURES: h.cpu()}

    def own_features(self, message: Message, client: Client) -> Tensor:
        """Return the features (n, d) of the client's samples under the broadcast encoder, evaluation mode.

        Raises:
            ClientError: the client has no sample, or features that are not finite.
        """
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
        embed = self.embedder(Server(message.tensors))
        positions = torch.arange(len(client.train), device=client.train.index.device)
        h = torch.cat([embed(client.train.x(part)) for part in positions.split(FORWARD_ROWS)])
        if not torch.isfinite(h).all():
            raise ClientError(f"client {client.id} has features that are not finite")
        return h

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
        model = {**server.model, CENTRES: centres}
        if self.settings.evenness and not server.facts.get("uneven"):
            model[PRICES] = torch.zeros(centres.shape[:2], dtype=torch.float64)
        return server.next(model)

    def move_centres(self, server: Server, total: Tensors) -> Server:
        """Return the state after one iteration with the sums of all clients; finished where the best start rests."""
        moved = {CENTRES: moved_centres(server.model[CENTRES], total["sums"], total["counts"])}
        moves = int(server.facts.get("moves", 0)) + 1
        if PRICES in server.model:
            prices = server.model[PRICES]
            counts = total["counts"]
            evenness = self.settings.evenness
            costs = cost(total["value"], prices, counts, evenness)
            moved[PRICES] = moved_prices(prices, counts, total["products"], SOFTNESS, evenness)
        else:
            costs = total["inertia"]
        best = int(costs.argmin())
        rests = all(
            bool((to[best] - server.model[name][best]).abs().max() <= MAX_REST_MOVE) for name, to in moved.items()
        )
        if PRICES in moved and (moves == self.last_priced_move or (rests and moves < self.last_priced_move)):
            sizes = moved[PRICES][best] / self.settings.evenness  # their logarithms, up to a constant
            if float(sizes.std(correction=0)) > UNEVEN_SIZES:
                return self.without_prices(server)
        facts = server.facts | {"inertia": costs.tolist(), "best": best, "moves": moves}
        return server.next({**server.model, **moved}, facts=facts, finished=rests)

    def without_prices(self, server: Server) -> Server:
        """Return the state from which plain K-means starts again, among the components as they are."""
        model = {name: tensor for name, tensor in server.model.items() if name not in (CENTRES, PRICES)}
        # Whitening scaled the directions, which are orthonormal.
        model[PROJECTION] = F.normalize(model[PROJECTION], dim=0)
        facts = {name: value for name, value in server.facts.items() if name not in ("inertia", "best", "moves")}
        return server.next(model, facts={**facts, "uneven": True})

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Return a function from samples x to features (n, d) of the encoder in evaluation mode."""
        return super().embedder(replace(server, model=network_tensors(server.model)))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """Find BatchNorm's statistics while the encoder is trained; clusters use features under the averaged ones."""
        return {} if self.next_step(server) != "train" else super().recalibrate(server, clients, evaluation)

    def centres(self, server: Server) -> Tensor | None:
        """Return the centres (c, d) of the best start, float64; None before K-means has begun.

        With prices they have one more dimension, in which every sample is at 0, so that the nearest centre is that
        of the cheapest cluster.
        """
        if CENTRES not in server.model:
            return None
        best = server.facts.get("best", 0)
        centres = server.model[CENTRES][best]
        if PRICES not in server.model:
            return centres
        return lifted_centres(centres, server.model[PRICES][best])

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function that assigns samples to the nearest centre; before K-means has begun FedSimCLR's."""
        best = self.centres(server)
        if best is None:
            return super().predictor(server)
        embed = self.embedder(server)
        centres = best.to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            h = clustered(embed(x), server.model)
            if PRICES in server.model:
                h = lifted_samples(h)
            cluster = nearest(h, centres[None])[0][0]
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), h.float())

        return predict

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """Assign samples to the nearest centre; return None before K-means has begun."""
        centres = self.centres(server)
        if centres is None:
            return None
        return assign_samples(self.predictor(server), evaluation, None, centres=centres)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return FedSimCLR's metrics during training, then those of the clusters; at the end both."""
        if self.centres(server) is None:
            return super().evaluate(server, clients, evaluation)
        metrics = evaluate_predictor(self.predictor(server), replace(evaluation, final=False))
        if self.settings.evenness:
            metrics["cluster_prices"] = float(PRICES in server.model)
        return (super().evaluate(server, clients, evaluation) | metrics) if evaluation.final else metrics


def network_tensors(tensors: Tensors) -> Tensors:
    """Return the tensors of the network, without those of K-means."""
    return {name: tensor for name, tensor in tensors.items() if name not in KMEANS_TENSORS}


def clustered(features: Tensor, tensors: Tensors) -> Tensor:
    """Return the points that are clustered (n, k), float64: features projected and scaled to unit length.

    Args:
        features: of the encoder, (n, d).
        tensors: of the server, or of its message.
    """
    mean, projection = (tensors[name].to(features.device) for name in (MEAN, PROJECTION))
    return F.normalize((features.double() - mean) @ projection, dim=1)
