"""FedAvg (McMahan et al. 2017), supervised: one model, the mean of the clients' models by number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.methods.averaging.server_optimiser import next_average
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.supervised import Classifier, Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Prediction
from shoal.methods.contract.questions import Question
from shoal.methods.training.local import as_input
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class FedAvgSettings:
    """FedAvg has no hyper-parameters beyond `local`."""


class FedAvg(Supervised):
    """FedAvg as a method: the server state is one vector of weights."""

    name = "fedavg"
    title = "federated averaging (FedAvg)"
    question = Question.CLIENTS
    about = "One model for all clients."
    Settings = FedAvgSettings
    settings: FedAvgSettings
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """Start from the initial weights."""
        network = self.network()
        return Server({"weights": Vectors(network).flatten(network)})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Return local epochs on the cross-entropy."""
        self.check(client)
        network = self.network()
        vectors = Vectors(network)

        def finish(taken: TakenSteps) -> Update:
            weights = vectors.flatten(network)
            return Update(Message({"weights": weights}, {"n": len(client.train)}), metrics=taken.metrics)

        return self.epochs(vectors.load(network, message.tensors["weights"]), client, finish)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """Average the weights by number of samples."""
        return next_average(
            server, updates, self.context.aggregation, lambda: {"weights": Vectors(self.network()).size}
        )

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Return accuracy and loss on the validation samples of the clients."""
        network = self.network()
        Vectors(network).load(network, server.model["weights"])
        return self.clients_metrics({c.id: judge(network, c.validation, self.context) for c in clients})

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Return a function that predicts the classes of images.

        Raises:
            MethodError: the model is a language model.
        """
        network = self.network()
        if not isinstance(network, Classifier):
            raise MethodError("a language model has no clusters to predict")
        Vectors(network).load(network, server.model["weights"])
        network.eval()

        def predict(x: Tensor) -> Prediction:
            x = as_input(x.to(self.context.device))
            with torch.no_grad(), self.context.autocast():
                features = network.encoder(x)
                soft = network.out(features).softmax(1)
            return Prediction(soft.argmax(1), soft, features)

        return predict
