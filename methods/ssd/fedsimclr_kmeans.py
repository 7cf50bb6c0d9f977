"""FedSimCLR, then federated K-means over what it has learnt: a federated clustering in which nothing is pooled.

The first rounds are FedSimCLR's. In the last `kmeans_rounds` the encoder stays as it is: clients first cluster their
own features and send centres and counts, from which the server starts; then each round is one iteration of K-means,
for which clients send the sums and counts of their clusters. Several starts go on side by side, and the one with the
least sum of squared distances counts.

The idea: under uneven clients averaged features stay good where averaged cluster heads do not, since the heads of
clients that hold different classes disagree on which output means what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from core.setting import setting
from core.streams import Streams
from methods.assignment import assign_samples
from methods.base import (
    Assignment,
    Client,
    ClientError,
    Clients,
    Evaluation,
    Message,
    Prediction,
    Server,
    Tensors,
    Update,
)
from methods.scores.evaluation import evaluate_predictor
from methods.ssd.fedsimclr import FedSimCLR, FedSimCLRSettings
from methods.training.federated_k_means import cluster_sums, moved_centres, nearest, starting_centres
from methods.training.k_means import kmeans

CENTRES = "kmeans.centres"
"""Among the server's tensors: (s, c, d) float64, the centres of every start."""
FEATURES = "features"
"""In a client's memory: (n, d) float32, what the finished encoder makes of its samples."""
ROWS = 512
"""Samples in one forward pass."""
STILL = 1e-9
"""K-means is done when no centre of the best start has moved by more than this."""


@dataclass(frozen=True)
class FedSimCLRKMeansSettings(FedSimCLRSettings):
    """Hyper-parameters of FedSimCLR with federated K-means."""

    kmeans_rounds: int = setting(
        10,
        "number of last rounds of the run that leave the encoder as it is and find the clusters by federated K-means; "
        "at least one round trains, however few there are",
        ge=2,
    )
    starts: int = setting(
        10,
        "number of K-means starts that go on side by side, of which the one with the least sum of squared distances "
        "counts",
        ge=1,
    )
    unit_features: bool = setting(True, "whether features are scaled to unit length before they are clustered")
    least_points: int = setting(
        2,
        "smallest number of a client's samples in a cluster of which it sends a centre or a sum; smaller ones would "
        "tell of single samples",
        ge=1,
    )


class FedSimCLRKMeans(FedSimCLR):
    """FedSimCLR with federated K-means as a method.

    Server state: encoder and projector; once K-means has begun also the centres of every start, and as facts their sums
    of squared distances and which clients have the encoder. A client's memory holds the features of its samples then.
    """

    name = "fedsimclr_kmeans"
    Settings = FedSimCLRKMeansSettings
    settings: FedSimCLRKMeansSettings
    averages = False  # the last rounds move centres
    loss_falls = False  # they have no loss

    @property
    def needs_clusters(self) -> bool:
        """K-means finds a given number."""
        return True

    @property
    def training_rounds(self) -> int:
        """How many rounds train the encoder."""
        return max(1, self.context.rounds - self.settings.kmeans_rounds)

    def broadcast(self, server: Server, client: int) -> Message:
        """The network; once a client has it for good, the centres alone."""
        facts = {"clients": server.facts["clients"], "find": server.round >= self.training_rounds}
        have = client in server.facts.get("have", ())
        network = {} if have else network_of(server.tensors)
        return Message(network | {k: t for k, t in server.tensors.items() if k == CENTRES}, facts)

    def client_update(self, message: Message, client: Client) -> Update:
        """FedSimCLR's local epochs; or local centres to start from; or sums and counts of one K-means iteration."""
        if not message.facts["find"]:
            return super().client_update(message, client)
        features, memory = self.features(message, client)
        if CENTRES in message.tensors:
            found = cluster_sums(features, message.tensors[CENTRES], least=self.settings.least_points)
            tensors = {"sums": found.sums, "counts": found.counts, "inertia": found.inertia}
        else:
            local = kmeans(
                features.double().cpu().numpy(),
                min(self.context.clusters, len(features)),
                client.streams.numpy("kmeans"),
            )
            counts = torch.bincount(torch.from_numpy(local.cluster), minlength=len(local.centres)).double()
            told = counts >= self.settings.least_points
            tensors = {"centres": torch.from_numpy(local.centres).double()[told], "counts": counts[told]}
        return Update(Message({k: t.cpu() for k, t in tensors.items()}), memory=memory)

    def features(self, message: Message, client: Client) -> tuple[Tensor, Tensors | None]:
        """What the finished encoder makes of the client's samples (n, d), and the memory to keep, where it is new.

        Raises:
            ClientError: no sample, or features that are not finite.
        """
        if FEATURES in client.memory:
            return client.memory[FEATURES], None
        if not len(client.train):
            raise ClientError(f"client {client.id} has no training samples to cluster")
        embed = self.embedder(Server(message.tensors))
        positions = torch.arange(len(client.train), device=client.train.index.device)
        h = torch.cat([embed(client.train.x(part)) for part in positions.split(ROWS)])
        if not torch.isfinite(h).all():
            raise ClientError(f"client {client.id} has features that are not finite")
        return h, {FEATURES: h.cpu()}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of the weights; or starts from the clients' centres; or every start's centres moved."""
        if server.round < self.training_rounds:
            return super().aggregate(server, updates)
        came = list(updates)  # a few centres each
        have = sorted({*server.facts.get("have", ()), *(update.client for update in came)})
        if CENTRES not in server.tensors:
            local, counts = (torch.cat([u.message.tensors[k] for u in came]) for k in ("centres", "counts"))
            rng = Streams(self.context.seed).numpy("kmeans server")
            centres = starting_centres(local, counts, self.context.clusters, self.settings.starts, rng)
            return server.next({**server.tensors, CENTRES: centres}, {**server.facts, "have": have})
        before = server.tensors[CENTRES]
        sums, counts, inertia = (
            torch.stack([u.message.tensors[k] for u in came]).sum(0) for k in ("sums", "counts", "inertia")
        )
        centres = moved_centres(before, sums, counts)
        best = int(inertia.argmin())
        facts = {**server.facts, "have": have, "inertia": inertia.tolist(), "best": best}
        still = bool((centres[best] - before[best]).abs().max() <= STILL)
        return server.next({**server.tensors, CENTRES: centres}, facts, finished=still)

    def embedder(self, server: Server) -> Callable[[Tensor], Tensor]:
        """Samples x to features (n, d) of the encoder, evaluation mode; of unit length if the settings say so."""
        embed = super().embedder(replace(server, tensors=network_of(server.tensors)))
        return (lambda x: F.normalize(embed(x), dim=1)) if self.settings.unit_features else embed

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics while the encoder is trained; clusters are of features under the averaged ones."""
        return {} if CENTRES in server.tensors else super().recalibrate(server, clients, evaluation)

    def centres(self, server: Server) -> Tensor | None:
        """The centres (c, d) of the best start, float64; None before K-means has begun."""
        return server.tensors[CENTRES][server.facts.get("best", 0)] if CENTRES in server.tensors else None

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The nearest centre, as a hard assignment; before K-means has begun FedSimCLR's."""
        centres = self.centres(server)
        if centres is None:
            return super().predictor(server)
        embed, centres = self.embedder(server), centres.to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            h = embed(x)
            cluster = nearest(h.double(), centres[None])[0][0]
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), h)

        return predict

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment | None:
        """The nearest centre; before K-means has begun None."""
        centres = self.centres(server)
        if centres is None:
            return None
        return assign_samples(self.predictor(server), evaluation, None, centres=centres)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """FedSimCLR's metrics while it trains; then those of the clusters, and finally both."""
        if self.centres(server) is None:
            return super().evaluate(server, clients, evaluation)
        found = evaluate_predictor(self.predictor(server), replace(evaluation, final=False))
        return (super().evaluate(server, clients, evaluation) | found) if evaluation.final else found


def network_of(tensors: Tensors) -> Tensors:
    """The network's tensors alone."""
    return {name: tensor for name, tensor in tensors.items() if name != CENTRES}
