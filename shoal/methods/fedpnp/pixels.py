"""K-means on raw samples, centralised: the result of clustering without a representation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.methods.clustering.k_means import kmeans
from shoal.methods.contract.base import Client, ClientError, Clients, Evaluation, Method, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.declared import MessageForm, TensorForm, exactly
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Assignment, Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.scores.assignment import assign_samples, centre_predictor
from shoal.methods.scores.evaluation import evaluate_predictor


@dataclass(frozen=True)
class KMeansSettings:
    """K-means has no hyper-parameters: it keeps the best of ten starts."""


class KMeansPixels(Method):
    """K-means as a method: one client holds all data, and one round gives the centres."""

    name = "kmeans"
    title = "K-means on pooled samples"
    question = Question.REFERENCES
    about = "All data in one place, no training."
    Settings = KMeansSettings
    settings: KMeansSettings
    pooled = True
    kinds = ("image", "vector", "series")
    trains = False
    judges_features = True
    evaluation_reads_memory = False

    def declared(self, server: Server, client: int, samples: int) -> MessageForm:
        """Return the form of the centres."""
        shape = (self.context.clusters, math.prod(self.context.spec.shape))
        return MessageForm({"centres": TensorForm(shape)}, {"n": exactly(samples)})

    def client_update(self, message: Message, client: Client) -> Update:
        """Return centres (c, pixels) of all samples, without augmentation."""
        x = client.train.x().flatten(1).cpu().numpy()
        try:
            clustering = kmeans(x, self.context.clusters, client.streams.numpy("kmeans"))
        except MethodError as error:
            raise ClientError(f"client {client.id}: {error}") from error
        return Update(
            Message({"centres": torch.from_numpy(clustering.centres)}, {"n": len(x)}),
            metrics={"loss": clustering.inertia / len(x)},
        )

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Return the centres of the one client, and end the run."""
        (update,) = updates
        return server.next(update.message.tensors, finished=True)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function to the nearest centre, as a hard assignment; a sample's values are its embedding.

        Raises:
            MethodError: before the first round.
        """
        if "centres" not in server.model:
            raise MethodError("K-means has no centres before its first round")
        return centre_predictor(server.model["centres"].to(self.context.device))

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return ACC, NMI, ARI and purity over all train and test samples; at the end also metrics of the pixels."""
        return evaluate_predictor(self.predictor(server), evaluation)

    def assignment(self, server: Server, clients: Clients, evaluation: Evaluation) -> Assignment:
        """Return the nearest centre of each sample, and by what margin it is the nearest."""
        predict = self.predictor(server)  # raises before the first round
        return assign_samples(predict, evaluation, centres=server.model["centres"])
