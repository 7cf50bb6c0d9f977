"""k-FED: one-shot federated K-means (Dennis et al. 2021; UIFCA's algorithm 1).

Each client clusters its points by K-means and sends the centres; the server clusters the centres of all clients. A
point belongs to the server's cluster of its local centre. The centre of a single point is that point itself: therefore
clusters below a smallest size are joined to the nearest before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.core.streams import Streams
from shoal.methods.clustering.k_means import join_small, kmeans
from shoal.methods.contract.base import (
    Client,
    ClientError,
    Clients,
    Evaluation,
    Federation,
    Method,
    Server,
    SummedRows,
    Update,
)
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm
from shoal.methods.contract.message import Message, Tensors
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples, assignment_metrics, centre_predictor
from shoal.methods.uifca.declared import beyond_centres, centres_form, memory_form

STARTS = 10
"""Number of starts of K-means on clients and on the server; the best one counts."""


@dataclass(frozen=True)
class KFedSettings:
    """Hyper-parameters of k-FED."""

    min_points: int = setting(
        2,
        "smallest number of points whose mean a centre is: smaller clusters are joined to the nearest; with 1 a client "
        "may send single samples",
        ge=1,
    )


def send_centres(client: Client, clusters: int, min_points: int) -> Update:
    """Send a client's local centres, at most `clusters`, each of `min_points` points or more.

    The client keeps the local cluster of each point, int64 (n,). Smaller clusters are joined to the nearest.

    Raises:
        ClientError: the client has fewer than `min_points` points, or values that are not finite.
    """
    x = client.finite(client.train.x().flatten(1).float()).cpu().numpy()
    if len(x) < min_points:
        raise ClientError(
            f"client {client.id} has {len(x)} training samples, and a centre of k-FED is the mean of at least "
            f"{min_points}: leave this client out, or lower method.min_points"
        )
    clustering = kmeans(x, min(clusters, len(x)), client.streams.numpy("kfed"), starts=STARTS)
    clustering = join_small(x, clustering, min_points)
    centres = torch.from_numpy(clustering.centres).float()
    return Update(Message({"centres": centres}), memory={"local": torch.from_numpy(clustering.cluster)})


def gather_centres(updates: Iterable[Update], clusters: int, seed: int) -> tuple[Tensor, Tensors]:
    """Return the server's K-means over all local centres: centres (clusters, d), and `labels/I` for each client I."""
    rng = Streams(seed).numpy("kfed server")
    rows = [(update.client, update.message.tensors["centres"]) for update in updates]
    every = torch.cat([centres for _, centres in rows]).cpu()
    clustering = kmeans(every.numpy(), clusters, rng, starts=STARTS)
    labels = torch.from_numpy(clustering.cluster).split([len(centres) for _, centres in rows])
    by_client = {f"labels/{client}": part.clone() for (client, _), part in zip(rows, labels, strict=True)}
    return torch.from_numpy(clustering.centres).float(), by_client


def kfed_assignment(message: Message, client: Client) -> Tensor | None:
    """Return the cluster of each point, int64 (n,), by `labels` of the client's local clusters; None without them."""
    if "labels" in message.tensors and "local" in client.memory:
        return message.tensors["labels"][client.memory["local"]]
    return None


class KFed(Method):
    """k-FED as a method: one round; the local cluster of each point stays in the client's memory."""

    name = "kfed"
    title = "k-FED"
    question = Question.VECTORS
    about = "Clusters in one round, from the local centres of the clients."
    Settings = KFedSettings
    kinds = ("vector", "image", "series")
    trains = False
    settings: KFedSettings

    def init_server(self, federation: Federation) -> Server:
        """Start without centres."""
        return Server(facts={"seed": federation.streams.seed})

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare local centres."""
        return centres_form(self.context.clusters, math.prod(self.context.spec.shape))

    def declared_memory(self, server: Server, client: int, samples: int) -> MessageForm:
        """Declare the local cluster of each point."""
        return memory_form(self.context.clusters, samples)

    def mismatch(self, update: Update) -> str | None:
        """Return the fault of a local cluster without a centre, else None: it could not be judged."""
        return beyond_centres(update)

    def client_update(self, message: Message, client: Client) -> Update:
        """Send local centres, and remember the local clusters."""
        return send_centres(client, self.context.clusters, self.settings.min_points)

    def summed_rows(self, message: Message, client: Client) -> SummedRows:
        """Return the points, of which centres are means."""
        return SummedRows(client.train.x().flatten(1).double().cpu(), total_known=False)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Cluster the centres; the run is finished."""
        centres, labels = gather_centres(updates, self.context.clusters, self.context.seed)
        return server.next({"centres": centres}, state=labels, finished=True)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function that assigns samples to the nearest of the server's centres, for samples of no client.

        Raises:
            MethodError: the run has not had its one round.
        """
        if "centres" not in server.model:
            raise MethodError("k-FED has no centres before its round")
        return centre_predictor(server.model["centres"].to(self.context.device))

    def judged_part(self, server: Server, clients: Sequence[int]) -> Server:
        """Return the centres, and the clusters of these clients' own."""
        labels = {f"labels/{client}" for client in clients}
        return replace(server, state={name: tensor for name, tensor in server.state.items() if name in labels})

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Assign clients' points with their local centres, and other samples to the nearest of the server's centres."""
        predict = self.predictor(server)
        own_clusters = self.clustered(server, clients)
        return assign_samples(predict, evaluation, centres=server.model["centres"], own_clusters=own_clusters)

    def clustered(self, server: Server, clients: Clients) -> tuple[Tensor, Tensor] | None:
        """Return the numbers of the clients' points, and their clusters; None where no client sent its centres."""
        index = []
        cluster = []
        for client in clients:
            labels = server.state.get(f"labels/{client.id}")
            if labels is not None and "local" in client.memory:
                index.append(client.train.index)
                cluster.append(labels[client.memory["local"]])
        if not index:
            return None
        return torch.cat(index), torch.cat(cluster)

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return the scores of `assignment`; nothing before a client sent its centres."""
        if self.clustered(server, clients) is None:
            return {}
        return assignment_metrics(self.assignment(server, clients, evaluation), evaluation)
