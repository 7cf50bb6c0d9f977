"""K-means on raw samples, centralised: what clustering gives without a representation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.core.setting import setting
from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Federation, Method, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.scores.assignment import assign_samples
from shoal.methods.scores.evaluation import evaluate_predictor


@dataclass(frozen=True)
class KMeansSettings:
    """Hyper-parameters of K-means."""

    starts: int = setting(10, "number of K-means restarts from k-means++ centres, of which the best one counts", ge=1)


class KMeansPixels(Method):
    """K-means as a method: one client holds all data, and one round gives the centres."""

    name = "kmeans"
    Settings = KMeansSettings
    settings: KMeansSettings
    pooled = True
    kinds = ("image", "vector")
    trains = False
    judges_features = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """No centres yet."""
        return Server()

    def broadcast(self, server: Server, client: int) -> Message:
        """Nothing: the one client knows the number of clusters."""
        return Message()

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """The centres."""
        shape = self.context.clusters, math.prod(self.context.spec.shape)
        return MessageForm({"centres": TensorForm(shape)}, {"n": exactly(samples)})

    def client_update(self, message: Message, client: Client) -> Update:
        """Centres (c, pixels) of all samples, without augmentation."""
        x = client.train.x().flatten(1).cpu().numpy()
        try:
            found = kmeans(x, self.context.clusters, client.streams.numpy("kmeans"), starts=self.settings.starts)
        except MethodError as error:
            raise ClientError(f"client {client.id}: {error}") from error
        return Update(
            Message({"centres": torch.from_numpy(found.centres)}, {"n": len(x)}),
            metrics={"loss": found.inertia / len(x)},
        )

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The centres of the one client; there is no second round."""
        (update,) = updates
        return server.next(update.message.tensors, finished=True)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """The nearest centre, as a hard assignment; a sample's values are its embedding.

        Raises:
            MethodError: before the first round.
        """
        if "centres" not in server.model:
            raise MethodError("K-means has no centres before its first round")
        centres = server.model["centres"].to(self.context.device)

        def predict(x: Tensor) -> Prediction:
            x = x.to(self.context.device).flatten(1).float()
            cluster = torch.cdist(x, centres).argmin(1)
            return Prediction(cluster, F.one_hot(cluster, len(centres)).float(), x)

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """ACC, NMI, ARI and purity over all train and test samples; at the end, what pixels are worth as features."""
        return evaluate_predictor(self.predictor(server), evaluation)

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """The nearest centre, and by what margin."""
        predict = self.predictor(server)  # before the first round it says so
        return assign_samples(predict, evaluation, None, centres=server.model["centres"])
