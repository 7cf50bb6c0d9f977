"""What the methods share whose server holds one `ClusterNet`: averaging, prediction, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from data.augment import normalise
from methods.base import Clients, Evaluation, Federation, Message, Prediction, Server, Tensors, Update
from methods.scores.evaluation import evaluate_predictor
from methods.scores.recalibration import recalibrate
from methods.training.local import load, seeded, weights
from methods.training.robust import aggregated
from methods.training.two_views import TwoViewMethod
from models.encoders import build_encoder
from models.heads import ClusterNet


class ClusterMethod(TwoViewMethod):
    """A method whose server state is the weights of one `ClusterNet` and whose clusters are its cluster head's.

    Clients train the broadcast weights on two views; to override: `step_loss`, see `TwoViewMethod`.
    """

    judges_features = True
    averages = True
    judged_by_memory = False
    shared_in_evaluation = "clusters"

    def network(self) -> ClusterNet:
        """A fresh network with the run's initial weights."""
        c = self.context
        return cast(
            ClusterNet,
            seeded(lambda: ClusterNet(build_encoder(c.model.encoder, c.spec.shape), c.clusters), c, drawn=self.drawn),
        )

    def facts(self, round: int) -> dict[str, Any]:
        """What is broadcast beside the weights in round `round` (1-based)."""
        return {}

    def init_server(self, federation: Federation) -> Server:
        """The initial weights."""
        return Server(weights(self.network()))

    def broadcast(self, server: Server, client: int) -> Message:
        """The weights and the facts of the round."""
        return Message(server.tensors, self.facts(server.round + 1))

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean of the weights by number of samples."""
        return server.next(aggregated(updates, self.context.aggregation, server.tensors))

    def recalibrate(self, server: Server, clients: Clients, evaluation: Evaluation) -> Tensors:
        """BatchNorm's statistics of the averaged network, on the clients' data."""
        network = self.network()
        load(network, server.tensors)
        return recalibrate(network, clients, evaluation, self.context)

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Argmax and softmax of the cluster head, features of the encoder; evaluation mode, no augmentation."""
        network = self.network()
        load(network, server.tensors)
        network.eval()

        def predict(x: Tensor) -> Prediction:
            x = normalise(x.to(self.context.device)).contiguous(memory_format=torch.channels_last)
            with torch.no_grad(), self.context.autocast():
                out = network(x)
            return Prediction(out.y.argmax(1), out.y, out.h)

        return predict

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """ACC, NMI, ARI and purity over all train and test images; representation metrics in the final evaluation."""
        return evaluate_predictor(self.predictor(server), evaluation, self.recipe())
