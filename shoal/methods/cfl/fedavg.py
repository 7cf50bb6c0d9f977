"""FedAvg (McMahan et al. 2017), supervised: one model, the mean of the clients' models by number of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.setting import setting
from shoal.data.augment import normalise
from shoal.methods.averaging.server_optimiser import next_average
from shoal.methods.averaging.vectors import Vectors
from shoal.methods.cfl.adversary import ATTACKS, Attack, attack_of, corrupt
from shoal.methods.cfl.supervised import Classifier, Supervised, judge
from shoal.methods.contract.base import Client, Clients, Evaluation, Federation, Server, Update
from shoal.methods.contract.context import MethodError
from shoal.methods.contract.message import Message
from shoal.methods.contract.prediction import Prediction
from shoal.methods.training.local_steps import LocalSteps, TakenSteps


@dataclass(frozen=True)
class FedAvgSettings:
    """Hyper-parameters of FedAvg, and planted adversaries."""

    adversaries: int = setting(0, "number of adversaries: that many clients, the last ones, send false updates", ge=0)
    attack: Attack = setting("mixed", ATTACKS)
    attack_scale: float = setting(10.0, "factor by which the attack scale multiplies updates", gt=0)


class FedAvg(Supervised):
    """FedAvg as a method: server state is one vector of weights."""

    name = "fedavg"
    Settings = FedAvgSettings
    settings: FedAvgSettings
    averages = True
    server_optimiser = True
    evaluation_reads_memory = False

    def init_server(self, federation: Federation) -> Server:
        """The initial weights."""
        network = self.network()
        return Server({"weights": Vectors(network).flatten(network)}, facts={"clients": federation.clients})

    def broadcast(self, server: Server, client: int) -> Message:
        """The weights."""
        return Message(server.model, {"clients": server.facts["clients"]})

    def local_steps(self, message: Message, client: Client) -> LocalSteps:
        """Local epochs on the cross-entropy."""
        self.check(client)
        s = self.settings
        vectors = Vectors(network := self.network())
        start = message.tensors["weights"]

        attack = attack_of(client.id, message.facts["clients"], s.adversaries, s.attack)

        def finish(taken: TakenSteps) -> Update:
            weights = vectors.flatten(network)
            if attack is not None:
                weights = start + corrupt(weights - start, attack, s.attack_scale, client.streams, start)
            return Update(Message({"weights": weights}, {"n": len(client.train)}), metrics=taken.metrics)

        return self.epochs(vectors.load(network, start), client, finish, reverse=attack == "labels")

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The mean by number of samples."""
        return next_average(
            server, updates, self.context.aggregation, lambda: {"weights": Vectors(self.network()).size}
        )

    def evaluate(self, server: Server, clients: Clients, evaluation: Evaluation) -> dict[str, float]:
        """Accuracy and loss on the validation samples of the honest clients."""
        vectors = Vectors(network := self.network())
        vectors.load(network, server.model["weights"])
        honest = range(len(clients) - self.settings.adversaries)
        return self.clients_metrics({k: judge(network, clients[k].validation, self.context) for k in honest})

    def predictor(self, server: Server) -> Callable[[Tensor], Prediction]:
        """Classes of images.

        Raises:
            MethodError: the model is of texts.
        """
        network = self.network()
        if not isinstance(network, Classifier):
            raise MethodError("a language model has no clusters to predict")
        Vectors(network).load(network, server.model["weights"])
        network.eval()

        def predict(x: Tensor) -> Prediction:
            x = normalise(x.to(self.context.device)).contiguous(memory_format=torch.channels_last)
            with torch.no_grad(), self.context.autocast():
                features = network.encoder(x)
                soft = network.out(features).softmax(1)
            return Prediction(soft.argmax(1), soft, features)

        return predict
